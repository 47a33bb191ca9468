/* Two tasks in one process hand a tensor over: by a wait, into memory of the caller's, and by a callback.
 *
 * cc -Isrc/capi src/capi/examples/handover.c -Ltarget/release -lrendez_c -lpthread -o handover
 */
#include "rendez.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const rendez_api *api;

static void check(rendez_status *status, const char *what) {
    if (status == NULL) {
        return;
    }
    fprintf(stderr, "%s: %s [%s]\n", what, api->status_message(status), api->status_reason(status));
    api->status_free(status);
    exit(1);
}

struct told {
    pthread_mutex_t lock;
    pthread_cond_t here;
    int count;
    int failed;
    float first;
};

static void told(void *context, rendez_status *status, rendez_value value) {
    struct told *told = context;
    const void *data = NULL;
    size_t size = 0;
    pthread_mutex_lock(&told->lock);
    if (status != NULL) {
        told->failed += 1;
        api->status_free(status);
    } else {
        check(api->tensor_data(value.tensor, &data, &size), "the tensor's data");
        memcpy(&told->first, data, sizeof told->first);
        api->tensor_free(value.tensor);
    }
    told->count += 1;
    pthread_cond_signal(&told->here);
    pthread_mutex_unlock(&told->lock);
}

static void wait_for(struct told *told, int count) {
    pthread_mutex_lock(&told->lock);
    while (told->count < count) {
        pthread_cond_wait(&told->here, &told->lock);
    }
    pthread_mutex_unlock(&told->lock);
}

static rendez_engine *start(const char *task) {
    char settings[256];
    rendez_engine *engine = NULL;
    snprintf(settings, sizeof settings, "task = \"/job:%s/task:0\"\nshards = 1\nshare_cores = true\n", task);
    check(api->engine_start(settings, &engine), "an engine");
    return engine;
}

static void release(void *context) { *(int *)context += 1; }

int main(void) {
    enum { LENGTH = 100000 };
    const uint64_t second = 1000000000;
    rendez_meta meta = {.dtype = 12, .rank = 1, .dims = {LENGTH}}; /* f32 */
    rendez_tensor *tensor = NULL;
    rendez_key *key = NULL;
    rendez_value value;
    void *data = NULL;

    api = rendez_get_api(RENDEZ_API_VERSION);
    if (api == NULL || api->size < sizeof *api) {
        fprintf(stderr, "the library is older than this program\n");
        return 1;
    }
    rendez_engine *worker = start("worker"), *server = start("server");
    check(api->engine_add_peer(worker, api->engine_task(server), api->engine_address(server)), "a peer");
    check(api->key_between("worker", "server", "gradient", &key), "a key");

    /* In the engine's memory, which the receiver reads in place. */
    check(api->tensor_new(worker, &meta, &tensor, &data), "a tensor");
    for (int at = 0; at < LENGTH; at++) {
        ((float *)data)[at] = (float)at;
    }
    check(api->send(worker, 1, key, tensor, 0), "a send");
    check(api->recv(server, 1, key, 10 * second, &value), "a receive");
    const void *bytes = NULL;
    size_t size = 0;
    check(api->tensor_data(value.tensor, &bytes, &size), "the tensor's data");
    printf("received %zu bytes by path %u, the last is %g\n", size, value.path, ((const float *)bytes)[LENGTH - 1]);
    int is_right = value.path == 2 && ((const float *)bytes)[LENGTH - 1] == LENGTH - 1;
    api->tensor_free(value.tensor);

    /* In memory of our own, received into memory of our own. */
    static float mine[LENGTH], room[LENGTH];
    int released = 0;
    for (int at = 0; at < LENGTH; at++) {
        mine[at] = (float)(2 * at);
    }
    check(api->tensor_lend(&meta, mine, sizeof mine, release, &released, &tensor), "a lent tensor");
    check(api->send(worker, 1, key, tensor, second), "a send of lent memory");
    check(api->recv_into(server, 1, key, 10 * second, room, sizeof room, &meta, &size), "a receive into memory");
    is_right = is_right && size == sizeof room && memcmp(mine, room, sizeof room) == 0;

    /* Told by a callback; and one that is cancelled. */
    struct told heard = {.lock = PTHREAD_MUTEX_INITIALIZER, .here = PTHREAD_COND_INITIALIZER};
    rendez_receive *receive = NULL;
    check(api->recv_async(server, 1, key, RENDEZ_FOREVER, told, &heard, NULL), "a receive by callback");
    check(api->tensor_new(worker, &meta, &tensor, &data), "a tensor");
    for (int at = 0; at < LENGTH; at++) {
        ((float *)data)[at] = 0.5F;
    }
    check(api->send(worker, 1, key, tensor, 0), "a send");
    wait_for(&heard, 1);
    check(api->recv_async(server, 1, key, RENDEZ_FOREVER, told, &heard, &receive), "a receive to cancel");
    api->receive_cancel(receive);
    api->receive_free(receive);
    wait_for(&heard, 2);
    is_right = is_right && heard.first == 0.5F && heard.failed == 1;

    /* What has no value in time is an error with a name. */
    rendez_status *late = api->recv(server, 1, key, second / 100, &value);
    is_right = is_right && api->status_code(late) == 4;
    printf("nothing more came: %s\n", api->status_message(late));
    api->status_free(late);

    api->key_free(key);
    api->engine_free(server);
    check(api->engine_shutdown(worker, second), "a shutdown");
    api->engine_free(worker);
    is_right = is_right && released == 1;
    printf(is_right ? "all as it should be\n" : "something is wrong\n");
    return is_right ? 0 : 1;
}
