// Collectives over bytes: see collectives.hpp.
//
// The algorithms are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
// MPICH" (2005), but that a rank which reads its peers' memory needs no ring: it takes its piece from each directly.
#include "collectives.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

#include <c10/util/Exception.h>

namespace rendez_torch {
namespace {

// Bytes that are written before they are sent: whole pages, as what lies in none is copied more slowly. Chosen by
// reasoning, as all four: other sizes were not measured.
constexpr size_t kChunk = 1 << 20;
// Bytes that a rank sends to others before it takes what they sent.
constexpr size_t kAhead = 8 << 20;
// Up to so many bytes a reduction sends everything to everyone: one exchange instead of two.
constexpr size_t kSmallReduction = 32 << 10;
// Up to so many ranks each speaks to each; more go by doubling, or a tree.
constexpr int kDirectRanks = 8;

// The part of a piece that goes in one chunk; empty behind its end.
Piece chunk_of(Piece piece, size_t at) {
    size_t start = std::min(at * kChunk, piece.size);
    size_t size = std::min(kChunk, piece.size - start);
    return {piece.data + start, size, piece.type, start == 0, start + size < piece.size};
}

size_t longest_of(const std::vector<Piece> &pieces) {
    size_t longest = 0;
    for (const Piece &piece : pieces) {
        longest = std::max(longest, piece.size);
    }
    return longest;
}

size_t chunks_in(const std::vector<Piece> &pieces) { return (longest_of(pieces) + kChunk - 1) / kChunk; }

void copy(Piece into, const char *from) {
    if (into.size != 0 && into.data != from) {
        std::memmove(into.data, from, into.size);
    }
}

bool share_memory(Piece one, Piece other) {
    std::less<const char *> before;
    return before(one.data, other.data + other.size) && before(other.data, one.data + one.size);
}

// What goes to each rank, out of the way of what is written before all is sent: a piece that lies there is copied. One
// that lies just where its rank's answer comes stays, since each chunk goes before that of the answer comes.
class Apart {
public:
    Apart(const std::vector<Piece> &out, const std::vector<Piece> &in) : pieces_(out) {
        for (size_t rank = 0; rank < out.size(); ++rank) {
            Piece &piece = pieces_[rank];
            auto is_written = [&](const Piece &into) {
                bool is_answer = &into == &in[rank] && into.data == piece.data;
                return !is_answer && share_memory(piece, into);
            };
            if (std::any_of(in.begin(), in.end(), is_written)) {
                piece.data = copies_.emplace_back(piece.data, piece.data + piece.size).data();
            }
        }
    }
    const Piece &operator[](size_t rank) const { return pieces_[rank]; }

private:
    std::vector<Piece> pieces_;
    std::vector<std::vector<char>> copies_;
};

} // namespace

Stamp Collective::stamp_of(Piece piece) const {
    Stamp stamp = stamp_;
    stamp.type = static_cast<uint64_t>(piece.type);
    stamp.goes_on = piece.goes_on ? 1 : 0;
    return stamp;
}

Room Collective::written(Piece piece) const {
    Room room = group_.room(piece.size, stamp_of(piece), piece.is_first, until_);
    copy({room.data(), piece.size}, piece.data);
    return room;
}

void Collective::send(int to, Lane lane, Piece piece) {
    if (piece.size == 0) {
        return;
    }
    group_.send(to, lane, written(piece).finish(), until_);
}

void Collective::send_all(Lane lane, Piece piece) {
    if (piece.size == 0 || size() == 1) {
        return;
    }
    Room room = written(piece);
    // Each begins with another, so that no rank is the first of all.
    for (int i = 1; i < size(); ++i) {
        group_.send((rank() + i) % size(), lane, i + 1 < size() ? room.share() : room.finish(), until_);
    }
}

void Collective::recv(int from, Lane lane, Piece into) {
    if (into.size != 0) {
        Bytes bytes = group_.recv(from, lane, into.size, stamp_of(into), into.is_first, until_);
        copy(into, bytes.data());
    }
}

void Collective::recv_reduce(int from, Lane lane, Elements into) {
    if (into.count != 0) {
        Piece piece = into.piece();
        Bytes bytes = group_.recv(from, lane, piece.size, stamp_of(piece), piece.is_first, until_);
        rendez_torch::reduce(into.data, bytes.data(), into.count, into.type, into.how);
    }
}

// What goes to all the others one after the other is written for the first.
void Collective::send(Shared &shared, int to, Lane lane, Piece piece) {
    if (piece.size == 0) {
        return;
    }
    if (shared.left == 0) {
        shared.room = written(piece);
        shared.left = size() - 1;
    }
    group_.send(to, lane, --shared.left > 0 ? shared.room->share() : shared.room->finish(), until_);
}

size_t Collective::turns_ahead(size_t longest) const {
    size_t bytes = std::max<size_t>(std::min(longest, kChunk), 1);
    return std::clamp<size_t>(kAhead / bytes, 1, static_cast<size_t>(size()));
}

// Who is the furthest behind waits for nobody. What it has sent in all turns but the last ones is taken, so what has to
// fit into `parked_bytes_per_step` does not grow with the number of ranks.
void Collective::by_turns(std::initializer_list<Part> parts) {
    auto ranks = static_cast<size_t>(size()), own = static_cast<size_t>(rank());
    size_t turns = 0;
    for (const Part &part : parts) {
        turns = std::max(turns, part.after + part.chunks * ranks);
    }
    for (size_t turn = 0; turn < turns; ++turn) {
        for (const Part &part : parts) {
            if (turn < part.after || turn - part.after >= part.chunks * ranks) {
                continue;
            }
            size_t number = turn - part.after, partner = (number + ranks - own) % ranks;
            if (partner != own) {
                part.act(number / ranks, static_cast<int>(partner));
            }
        }
    }
}

// What a rank gives itself is copied here, so both ends of it have to agree.
void Collective::check_own(size_t out, size_t in) const {
    TORCH_CHECK(out == in, "rendez: ", until_.what, ": this rank's own input has ", out, " bytes, and its output ", in,
                ": they have to be of one size");
}

void Collective::exchange(const std::vector<Piece> &out, const std::vector<Piece> &in) {
    Apart sent(out, in);
    auto own = static_cast<size_t>(rank());
    check_own(out[own].size, in[own].size);
    copy(in[own], sent[own].data);
    // Others have pieces of other sizes: all ranks have to be equally far ahead.
    size_t ahead = turns_ahead(kChunk);
    by_turns({{0, chunks_in(out),
               [&](size_t at, int to) {
                   send(to, Lane::contribution, chunk_of(sent[static_cast<size_t>(to)], at));
               }},
              {ahead, chunks_in(in), [&](size_t at, int from) {
                   recv(from, Lane::contribution, chunk_of(in[static_cast<size_t>(from)], at));
               }}});
}

void Collective::spread(Piece own, const std::vector<Piece> &in) {
    Piece kept = in[static_cast<size_t>(rank())];
    check_own(own.size, kept.size);
    copy(kept, own.data);
    // What others give may be written to where `own` lies.
    own = kept;
    Shared shared;
    by_turns({{0, chunks_in({own}),
               [&](size_t at, int to) { send(shared, to, Lane::contribution, chunk_of(own, at)); }},
              {turns_ahead(longest_of(in)), chunks_in(in), [&](size_t at, int from) {
                   recv(from, Lane::contribution, chunk_of(in[static_cast<size_t>(from)], at));
               }}});
}

void Collective::broadcast(Piece piece, int root) {
    size_t chunks = chunks_in({piece});
    if (size() <= kDirectRanks) {
        for (size_t at = 0; at < chunks; ++at) {
            Piece part = chunk_of(piece, at);
            rank() == root ? send_all(Lane::contribution, part) : recv(root, Lane::contribution, part);
        }
        return;
    }
    // A binomial tree: a rank hears from the one that its lowest bit is taken off of.
    int relative = (rank() - root + size()) % size();
    int lowest = 1;
    while (lowest < size() && (relative & lowest) == 0) {
        lowest <<= 1;
    }
    for (size_t at = 0; at < chunks; ++at) {
        Piece part = chunk_of(piece, at);
        if (relative != 0) {
            recv((relative - lowest + root) % size(), Lane::contribution, part);
        }
        for (int bit = lowest >> 1; bit > 0; bit >>= 1) {
            if (relative + bit < size()) {
                send((relative + bit + root) % size(), Lane::contribution, part);
            }
        }
    }
}

void Collective::all_reduce(Elements elements) {
    if (elements.count * elements.width() > kSmallReduction) {
        reduce_in_pieces(elements, -1);
    } else if (size() <= kDirectRanks) {
        reduce_at_all(elements);
    } else {
        reduce_by_doubling(elements);
    }
    finish_reduction(elements.data, elements.count, elements.type, elements.how, size());
}

// Everyone sends all to everyone and reduces in the order of ranks, so that all have the same result to the last bit.
void Collective::reduce_at_all(Elements elements) {
    if (size() == 1 || elements.count == 0) {
        return;
    }
    Piece all = elements.piece();
    Room own = written(all);
    Bytes mine(own.share());
    for (int i = 1; i < size(); ++i) {
        group_.send((rank() + i) % size(), Lane::contribution, own.share(), until_);
    }
    for (int from = 0; from < size(); ++from) {
        Bytes theirs;
        if (from != rank()) {
            theirs = group_.recv(from, Lane::contribution, all.size, stamp_of(all), all.is_first, until_);
        }
        const char *data = from == rank() ? mine.data() : theirs.data();
        if (from == 0) {
            copy(all, data);
        } else {
            rendez_torch::reduce(elements.data, data, elements.count, elements.type, elements.how);
        }
    }
}

// Recursive doubling; what is over a power of two first adds itself to a neighbour, and hears the result at the end.
// All have the same result to the last bit, as each pair reduces the same two operands, those of the lower rank first:
// a minimum of zeros of either sign is the first of them.
void Collective::reduce_by_doubling(Elements elements) {
    Piece all = elements.piece();
    int power = 1;
    while (power * 2 <= size()) {
        power *= 2;
    }
    int over = size() - power;
    bool is_paired = rank() < 2 * over;
    if (is_paired && rank() % 2 == 1) {
        send(rank() - 1, Lane::contribution, all);
        return recv(rank() - 1, Lane::result, all);
    }
    if (is_paired) {
        recv_reduce(rank() + 1, Lane::contribution, elements);
    }
    int virtual_rank = is_paired ? rank() / 2 : rank() - over;
    for (int bit = 1; bit < power; bit <<= 1) {
        int other = virtual_rank ^ bit;
        int peer = other < over ? other * 2 : other + over;
        send(peer, Lane::contribution, all);
        if (virtual_rank < other) {
            recv_reduce(peer, Lane::contribution, elements);
            continue;
        }
        std::vector<char> mine(all.data, all.data + all.size);
        recv(peer, Lane::contribution, all);
        if (elements.count != 0) {
            rendez_torch::reduce(all.data, mine.data(), elements.count, elements.type, elements.how);
        }
    }
    if (is_paired) {
        send(rank() + 1, Lane::result, all);
    }
}

void Collective::reduce(Elements elements, int root) {
    size_t bytes = elements.count * elements.width();
    if (bytes > kSmallReduction) {
        reduce_in_pieces(elements, root);
    } else if (rank() != root) {
        send(root, Lane::contribution, elements.piece());
    } else {
        for (int from = 0; from < size(); ++from) {
            if (from != root) {
                recv_reduce(from, Lane::contribution, elements);
            }
        }
    }
    if (rank() == root) {
        finish_reduction(elements.data, elements.count, elements.type, elements.how, size());
    }
}

// Rabenseifner's: each rank reduces one piece, reading it from all others, and then gives it to all, or to the root.
// Three things are under way at a time: a chunk is written, the one before is reduced, and the one before that is read.
void Collective::reduce_in_pieces(Elements elements, int root) {
    size_t width = elements.width(), ranks = static_cast<size_t>(size()), own = static_cast<size_t>(rank());
    std::vector<Piece> pieces(ranks);
    for (size_t r = 0; r < ranks; ++r) {
        size_t begin = elements.count * r / ranks, end = elements.count * (r + 1) / ranks;
        pieces[r] = {elements.data + begin * width, (end - begin) * width, elements.type};
    }
    size_t chunks = chunks_in(pieces), ahead = turns_ahead(longest_of(pieces));
    auto give = [&](size_t at, int to) {
        send(to, Lane::contribution, chunk_of(pieces[static_cast<size_t>(to)], at));
    };
    auto take_in = [&](size_t at, int from) {
        recv_reduce(from, Lane::contribution, elements.at(chunk_of(pieces[own], at)));
    };
    Shared shared;
    auto give_result = [&](size_t at, int to) {
        if (root < 0) {
            send(shared, to, Lane::result, chunk_of(pieces[own], at));
        } else if (to == root) {
            send(to, Lane::result, chunk_of(pieces[own], at));
        }
    };
    auto take_result = [&](size_t at, int from) {
        if (root < 0 || rank() == root) {
            recv(from, Lane::result, chunk_of(pieces[static_cast<size_t>(from)], at));
        }
    };
    // A chunk is reduced in the last of its turns.
    size_t reduced = ahead + ranks - 1;
    by_turns({{0, chunks, give},
              {ahead, chunks, take_in},
              {reduced, chunks, give_result},
              {reduced + ahead, chunks, take_result}});
}

void Collective::reduce_scatter(const std::vector<Piece> &contributions, Elements result) {
    size_t ranks = static_cast<size_t>(size()), own = static_cast<size_t>(rank());
    Piece into = result.piece();
    std::vector<Piece> written(ranks);
    written[own] = into;
    Apart sent(contributions, written);
    copy(into, sent[own].data);
    by_turns({{0, chunks_in(contributions),
               [&](size_t at, int to) {
                   send(to, Lane::contribution, chunk_of(sent[static_cast<size_t>(to)], at));
               }},
              {turns_ahead(longest_of(contributions)), chunks_in({into}), [&](size_t at, int from) {
                   recv_reduce(from, Lane::contribution, result.at(chunk_of(into, at)));
               }}});
    finish_reduction(result.data, result.count, result.type, result.how, size());
}

// Dissemination (Hensgen, Finkel and Manber 1988): in round k each tells the one 2^k further on.
void Collective::barrier() {
    char here = 1;
    for (int distance = 1; distance < size(); distance *= 2) {
        send((rank() + distance) % size(), Lane::contribution, {&here, 1});
        recv((rank() - distance + size()) % size(), Lane::contribution, {&here, 1});
    }
}

} // namespace rendez_torch
