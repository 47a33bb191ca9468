/* rendez for C: hand a tensor from the one that made it to the one that needs it, by key.
 *
 * Made by cbindgen from the Rust sources in src/capi; `UPDATE_HEADER=1 cargo test -p rendez-capi` makes it anew.
 *
 * The library exports one function, rendez_get_api, which gives a table of functions. A table only ever grows at its
 * end: a program that was compiled with an older header runs with a newer library, and `size` tells a newer program
 * what an older library has.
 *
 * - Every function that can fail returns a status: NULL when all went well, and else an object to be freed with
 *   status_free.
 * - A handle that a function gives belongs to the caller, who frees it once. NULL may be freed. A function that fails
 *   gives NULL.
 * - Texts are UTF-8 and end with a zero. Times are in nanoseconds; RENDEZ_FOREVER is no bound.
 * - Functions that are passed in must return: one that throws or jumps out ends the process, or leaves it broken.
 * - Functions may be called from any thread; a tensor that is being written, and any handle that is being freed, from
 *   one thread at a time.
 */

#ifndef RENDEZ_H
#define RENDEZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// No bound of time.
#define RENDEZ_FOREVER UINT64_MAX

// The most dimensions that a shape has.
#define RENDEZ_RANK_MAX 8

// The version of the table: one that is not compatible has another.
#define RENDEZ_API_VERSION 1

// A running engine: one task of a cluster.
typedef struct rendez_engine rendez_engine;

// What a value is sent and received by.
typedef struct rendez_key rendez_key;

// A tensor's bytes, to be written to by their holder alone.
typedef struct rendez_mapping rendez_mapping;

// A receive that was begun, and whose outcome a callback is told.
typedef struct rendez_receive rendez_receive;

// Why something failed: one of the sixteen codes of gRPC, a reason that never changes, and a message for people.
typedef struct rendez_status rendez_status;

// A tensor. One in the engine's memory may be written until it is sent, or given to a function from which on it is
// not; all others are read only.
typedef struct rendez_tensor rendez_tensor;

// The type and the shape of a tensor.
typedef struct rendez_meta {
  // The type of its elements: 1 bool, 2 i8, 3 u8, 4 i16, 5 u16, 6 i32, 7 u32, 8 i64, 9 u64, 10 f16, 11 bf16, 12 f32,
  // 13 f64, 14 and 15 complex of two f32 and two f64. 16, strings, are received only: see `tensor_data`.
  uint32_t dtype;
  // How many dimensions it has: 0 for a scalar, at most RENDEZ_RANK_MAX.
  uint32_t rank;
  // The dimensions, outermost first; those behind `rank` are ignored, and 0 when they are given to C.
  uint64_t dims[RENDEZ_RANK_MAX];
} rendez_meta;

// A value that was received.
typedef struct rendez_value {
  // The tensor, the caller's to free; NULL where there is a status.
  struct rendez_tensor *tensor;
  // The way it came: 0 within this process, 1 in a frame, 2 read in place in its sender's memory, 3 copied.
  uint32_t path;
  // It says that no value will come.
  bool is_dead;
} rendez_value;

// What the library can do. New functions come at the end only.
typedef struct rendez_api {
  // The version of this table: RENDEZ_API_VERSION.
  uint32_t version;
  // Bytes of this table. What lies beyond is not there: the library is older than the header.
  uint32_t size;
  // The code, as gRPC numbers it; 0 for NULL.
  uint32_t (*status_code)(const struct rendez_status *status);
  // The reason: a name that never changes, as DEADLINE. It lives as long as the status.
  const char *(*status_reason)(const struct rendez_status *status);
  // What happened, where, and what to do, for people. It lives as long as the status.
  const char *(*status_message)(const struct rendez_status *status);
  // Frees a status.
  void (*status_free)(struct rendez_status *status);
  // Starts an engine. `settings` is a TOML text with the keys of the configuration page, or NULL for what the
  // configuration file and the environment say.
  struct rendez_status *(*engine_start)(const char *settings, struct rendez_engine **engine);
  // The name of its task, as "/job:worker/replica:0/task:0". It lives as long as the engine.
  const char *(*engine_task)(const struct rendez_engine *engine);
  // Where tasks of this machine reach it, or NULL. It lives as long as the engine.
  const char *(*engine_address)(const struct rendez_engine *engine);
  // Where tasks of other machines reach it, or NULL. It lives as long as the engine.
  const char *(*engine_tcp_address)(const struct rendez_engine *engine);
  // Says where a task is found. It is dialled when a key first names it.
  struct rendez_status *(*engine_add_peer)(const struct rendez_engine *engine,
                                           const char *task,
                                           const char *address);
  // Calls `take` once with the metrics, as Prometheus reads them, before it returns.
  struct rendez_status *(*engine_metrics)(const struct rendez_engine *engine,
                                          void (*take)(void *context, const char *text, size_t size),
                                          void *context);
  // Ends the task: what is under way has so long to arrive, and what waits then fails. Sends, receives and new
  // tensors fail from here on.
  struct rendez_status *(*engine_shutdown)(const struct rendez_engine *engine, uint64_t patience_ns);
  // Frees an engine, and ends it if nothing else has. Receives that wait for a callback are cancelled, and have
  // been called when this returns, unless a callback calls this. Those that are called meanwhile may use the engine.
  void (*engine_free)(struct rendez_engine *engine);
  // A key: "worker" to "server" is short for CPU 0 of task 0 of both jobs.
  struct rendez_status *(*key_between)(const char *source,
                                       const char *destination,
                                       const char *edge,
                                       struct rendez_key **key);
  // A key of its full text: source;incarnation;destination;edge;frame:iteration.
  struct rendez_status *(*key_parse)(const char *text, struct rendez_key **key);
  // Frees a key.
  void (*key_free)(struct rendez_key *key);
  // A tensor in the engine's memory, which a peer of this machine can read in place. `data` has the bytes that
  // `meta` takes, aligned to 64. It may be written until the tensor is sent, freed, or given to a function from
  // which on it is not written, as `tensor_clone`: `data` may be gone then.
  struct rendez_status *(*tensor_new)(const struct rendez_engine *engine,
                                      const struct rendez_meta *meta,
                                      struct rendez_tensor **tensor,
                                      void **data);
  // A tensor over memory of the caller's, which is read in place; 16 bytes or fewer are copied instead, and
  // released before this returns. `release` is called once, on any thread, when nothing reads the memory any more;
  // also if this fails. Until then it must not be changed. `release` may be NULL. It must not wait for another
  // thread, nor free the engine, nor lock what a thread holds that calls the library: it may run where the engine
  // moves values, and within calls as `send`, `recv` and `tensor_free`.
  struct rendez_status *(*tensor_lend)(const struct rendez_meta *meta,
                                       const void *data,
                                       size_t size,
                                       void (*release)(void *context),
                                       void *context,
                                       struct rendez_tensor **tensor);
  // Another handle of the same memory. Do not write to the tensor from here on, even if this fails.
  struct rendez_status *(*tensor_clone)(struct rendez_tensor *tensor, struct rendez_tensor **clone);
  // Its type and shape.
  struct rendez_status *(*tensor_meta)(const struct rendez_tensor *tensor, struct rendez_meta *meta);
  // Its bytes, to be read only. They live as long as the tensor. Those of strings begin with where each one ends: a
  // number of 8 bytes, little-endian, counted from the first byte behind all these numbers. There the strings lie,
  // one behind the other.
  struct rendez_status *(*tensor_data)(const struct rendez_tensor *tensor, const void **data, size_t *size);
  // Frees a tensor. The memory of one that was read in place goes back to its sender.
  void (*tensor_free)(struct rendez_tensor *tensor);
  // Sends a value by a key of this task's, and never waits for its receiver. The tensor is gone then, even if this
  // fails: clone it to keep it. `patience_ns` is how long it waits for room if there is none; 0 to fail at once.
  struct rendez_status *(*send)(const struct rendez_engine *engine,
                                uint64_t step,
                                const struct rendez_key *key,
                                struct rendez_tensor *tensor,
                                uint64_t patience_ns);
  // Waits for the next value of a key to this task.
  struct rendez_status *(*recv)(const struct rendez_engine *engine,
                                uint64_t step,
                                const struct rendez_key *key,
                                uint64_t patience_ns,
                                struct rendez_value *value);
  // The same, and copies it to `room`, from a device too. If that is too short this fails (RECV_ROOM), and the value
  // stays: `meta` and `size` say what it is, and how many bytes it takes. It does not tell a value that says that
  // none will come from others: `recv_into_value` does.
  struct rendez_status *(*recv_into)(const struct rendez_engine *engine,
                                     uint64_t step,
                                     const struct rendez_key *key,
                                     uint64_t patience_ns,
                                     void *room,
                                     size_t room_size,
                                     struct rendez_meta *meta,
                                     size_t *size);
  // Begins a receive, and calls `told` once with its outcome, on a thread of the library: the caller's to free are
  // either the status or the tensor of the value. Callbacks of an engine run one after the other; one that waits
  // holds up the others. If this fails `told` is not called. `receive`, which may be NULL, is a handle to cancel it.
  // That thread also turns an engine with the setting `drive = "caller"` while receives wait for their callbacks.
  struct rendez_status *(*recv_async)(const struct rendez_engine *engine,
                                      uint64_t step,
                                      const struct rendez_key *key,
                                      uint64_t patience_ns,
                                      void (*told)(void *context,
                                                   struct rendez_status *status,
                                                   struct rendez_value value),
                                      void *context,
                                      struct rendez_receive **receive);
  // Cancels a receive: `told` is called with CANCELLED, unless a value came first. The value of a cancelled receive
  // is the next one's.
  void (*receive_cancel)(const struct rendez_receive *receive);
  // Frees the handle of a receive, which goes on.
  void (*receive_free)(struct rendez_receive *receive);
  // Ends a step with an error: all that waits in it, on every task, fails with this code and message. The code is
  // one of gRPC's, 1 to 16.
  struct rendez_status *(*step_abort)(const struct rendez_engine *engine,
                                      uint64_t step,
                                      uint32_t code,
                                      const char *message);
  // Ends a step: what it holds on this task is dropped.
  struct rendez_status *(*step_finish)(const struct rendez_engine *engine, uint64_t step);
  // Has a step end with DEADLINE_EXCEEDED unless it has ended within this time.
  struct rendez_status *(*step_deadline)(const struct rendez_engine *engine,
                                         uint64_t step,
                                         uint64_t patience_ns);
  // Starts an engine as `engine_start` with NULL, and lets `settings`, a TOML text, override what the configuration
  // file and the environment say.
  struct rendez_status *(*engine_start_over)(const char *settings, struct rendez_engine **engine);
  // As `tensor_new`, and the bytes own whole pages: receivers that read them in place can `tensor_map` them.
  struct rendez_status *(*tensor_new_paged)(const struct rendez_engine *engine,
                                            const struct rendez_meta *meta,
                                            struct rendez_tensor **tensor,
                                            void **data);
  // Maps a tensor's bytes so that they may be written to: neither its sender nor another reader sees that. It keeps
  // the tensor, whose handle is freed apart. TENSOR_PAGES if the bytes do not own whole pages, or were copied here.
  // The tensor is not written from here on, also if this fails.
  struct rendez_status *(*tensor_map)(struct rendez_tensor *tensor,
                                      struct rendez_mapping **mapping,
                                      void **data,
                                      size_t *size);
  // Ends a mapping: its bytes are gone.
  void (*mapping_free)(struct rendez_mapping *mapping);
  // Which life of its task the engine is: another each time it is started. A receive whose key names it (see
  // `key_parse`, in hexadecimal) ends when this life does, also if it begins later. 0 without an engine.
  uint64_t (*engine_incarnation)(const struct rendez_engine *engine);
  // A copy of memory of a device, in the engine's memory there, which peers of this machine that see the device read
  // in place. `device` is its number and `stream` a CUstream of it, NULL for the default one: the copy comes behind
  // what it has queued, and what is queued there from now on behind the copy, so that the memory may be written
  // again. Nothing waits: the tensor can be sent at once. The engine's setting `devices` must not be off.
  struct rendez_status *(*tensor_copy_device)(const struct rendez_engine *engine,
                                              const struct rendez_meta *meta,
                                              uint32_t device,
                                              uint64_t address,
                                              void *stream,
                                              struct rendez_tensor **tensor);
  // Where a tensor's bytes lie, and how many there are: the number of a device and an address there, or -1 and an
  // address of this process. One that is being written stays so, and its `data` is the address.
  struct rendez_status *(*tensor_place)(struct rendez_tensor *tensor,
                                        int32_t *device,
                                        uint64_t *address,
                                        size_t *size);
  // A copy in the engine's memory of a device; another handle of the tensor if it lies there. The copy may be under
  // way when this returns. The tensor is not written from here on, also if this fails.
  struct rendez_status *(*tensor_to_device)(const struct rendez_engine *engine,
                                            struct rendez_tensor *tensor,
                                            uint32_t device,
                                            struct rendez_tensor **copy);
  // A copy that this process reads, when the tensor's bytes are there; another handle of the tensor if it lies in
  // the host's memory. The tensor is not written from here on, also if this fails.
  struct rendez_status *(*tensor_to_host)(const struct rendez_engine *engine,
                                          struct rendez_tensor *tensor,
                                          struct rendez_tensor **copy);
  // Lets what a stream queues from now on wait until a tensor's bytes are there. The bytes are read only, and the
  // tensor is not written from here on, also if this fails.
  struct rendez_status *(*tensor_order)(const struct rendez_engine *engine,
                                        struct rendez_tensor *tensor,
                                        uint32_t device,
                                        void *stream);
  // Frees a tensor of a device when a stream has done what it has queued, which may read the tensor. The handle is
  // gone, even if this fails: the memory is then never freed.
  struct rendez_status *(*tensor_free_after)(const struct rendez_engine *engine,
                                             struct rendez_tensor *tensor,
                                             uint32_t device,
                                             void *stream);
  // As `recv_into`; `is_dead` says whether the sender announced that no value will come, also if `room` is too
  // short.
  struct rendez_status *(*recv_into_value)(const struct rendez_engine *engine,
                                           uint64_t step,
                                           const struct rendez_key *key,
                                           uint64_t patience_ns,
                                           void *room,
                                           size_t room_size,
                                           struct rendez_meta *meta,
                                           size_t *size,
                                           bool *is_dead);
  // Calls `heard` with each line that the library logs from here on, until the process ends: what is odd in
  // settings, say, or which peer came and went. `level` is 1 for errors alone, 2 for warnings too, and so on to 5.
  // `heard` is called on any thread, also within calls of the library, and by several at the same time: it must not
  // call the library, nor wait for another thread. This can be done once: it fails if the process has a logger
  // already.
  struct rendez_status *(*log_to)(uint32_t level, void (*heard)(void *context,
                                                                uint32_t level,
                                                                const char *line,
                                                                size_t size), void *context);
  // Does one round of the engine's work that no other thread does at the moment, and does not wait. Gives whether
  // there was any. With the setting `drive = "caller"`, a thread that neither sends nor waits calls it now and then.
  bool (*engine_progress)(const struct rendez_engine *engine);
} rendez_api;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The table of that version: RENDEZ_API_VERSION. NULL if the library has none. It lives as long as the library.
const struct rendez_api *rendez_get_api(uint32_t version);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RENDEZ_H */
