// Collectives over bytes: what the ranks of a group exchange, and in which order.
//
// A value that is sent is written once into the engine's memory. Ranks of the same machine read it there, in place, so
// that one writing serves all of them; other machines get it by a socket. Large tensors go in chunks: while one is read
// by its peers the next is written, and the memory of the one before comes back while it is in the cache.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>

#include "group.hpp"
#include "reduction.hpp"

namespace rendez_torch {

// A run of bytes in a tensor.
struct Piece {
    char *data = nullptr;
    size_t size = 0;
    c10::ScalarType type = c10::ScalarType::Byte;
    // Of the parts of a longer run: whether it is the first, and whether it is not the last.
    bool is_first = true, goes_on = false;
};

// Elements to reduce.
struct Elements {
    char *data = nullptr;
    size_t count = 0;
    c10::ScalarType type = c10::ScalarType::Float;
    Reduction how = Reduction::sum;
    // As of a piece.
    bool is_first = true, goes_on = false;

    size_t width() const { return c10::elementSize(type); }
    Piece piece() const { return {data, count * width(), type, is_first, goes_on}; }
    // Those that lie there, to reduce alike.
    Elements at(Piece part) const {
        return {part.data, part.size / width(), type, how, part.is_first, part.goes_on};
    }
};

class Collective {
public:
    // `stamp` is what this rank was called with.
    Collective(Group &group, Until until, Stamp stamp) : group_(group), until_(until), stamp_(stamp) {
        stamp_.number = group.next_collective();
    }

    // out[r] goes to rank r, in[r] comes from it. They may share memory, as may inputs and outputs below.
    void exchange(const std::vector<Piece> &out, const std::vector<Piece> &in);
    // `own` goes to all, in[r] comes from rank r.
    void spread(Piece own, const std::vector<Piece> &in);
    void broadcast(Piece piece, int root);
    // Reduces in place: at every rank.
    void all_reduce(Elements elements);
    // Reduces in place at the root; elsewhere the elements are undefined afterwards.
    void reduce(Elements elements, int root);
    // contributions[r] are rank r's result's: each of `result.count` elements of that rank.
    void reduce_scatter(const std::vector<Piece> &contributions, Elements result);
    void barrier();

private:
    // Memory that goes to all the others, and to how many it has still to go.
    struct Shared {
        std::optional<Room> room;
        int left = 0;
    };
    // Something that is done with each of the others for each of so many chunks, from that turn on.
    struct Part {
        size_t after;
        size_t chunks;
        std::function<void(size_t chunk, int partner)> act;
    };

    void check_own(size_t out, size_t in) const;
    // All ranks take turns: for each chunk as many as there are ranks. In each a rank has a partner, whose partner it
    // is, or is its own and does nothing.
    void by_turns(std::initializer_list<Part> parts);
    // How many turns lie between what a rank sends in pieces of that length and what it takes.
    size_t turns_ahead(size_t longest) const;
    Stamp stamp_of(Piece piece) const;
    // Memory with what the piece says, which is sent then.
    Room written(Piece piece) const;
    void send(int to, Lane lane, Piece piece);
    void send(Shared &shared, int to, Lane lane, Piece piece);
    void send_all(Lane lane, Piece piece);
    void recv(int from, Lane lane, Piece into);
    void recv_reduce(int from, Lane lane, Elements into);
    void reduce_at_all(Elements elements);
    void reduce_by_doubling(Elements elements);
    void reduce_in_pieces(Elements elements, int root);
    int rank() const { return group_.rank(); }
    int size() const { return group_.size(); }

    Group &group_;
    Until until_;
    Stamp stamp_;
};

} // namespace rendez_torch
