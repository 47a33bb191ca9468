/* Two tasks in one process hand a tensor over, in C++.
 *
 * c++ -std=c++17 -Isrc/capi src/capi/examples/handover.cpp -Ltarget/release -lrendez_c -o handover-cpp
 */
#include "rendez.hpp"

#include <iostream>
#include <numeric>
#include <vector>

using namespace std::chrono_literals;

static std::string settings(const char *task) {
    return std::string("task = \"/job:") + task + "/task:0\"\nshards = 1\nshare_cores = true\n";
}

int main() {
    try {
        constexpr uint64_t length = 100000;
        rendez::Engine worker(settings("worker").c_str()), server(settings("server").c_str());
        worker.add_peer(server.task(), server.address());
        const rendez::Key key("worker", "server", "gradient");

        auto room = worker.tensor(rendez::meta(12, {length}));
        auto *floats = static_cast<float *>(room.data);
        std::iota(floats, floats + length, 0.0F);
        worker.send(1, key, std::move(room.tensor));
        const auto value = server.recv(1, key, 10s);
        const auto [data, size] = value.tensor.data();
        const float last = static_cast<const float *>(data)[length - 1];
        std::cout << "received " << size << " bytes by path " << value.path << ", the last is " << last << "\n";
        bool is_right = value.path == 2 && last == length - 1;

        bool is_released = false;
        {
            const std::vector<float> mine(length, 0.25F);
            std::vector<float> into(length);
            const size_t bytes = length * sizeof(float);
            auto lent = rendez::Tensor::lend(rendez::meta(12, {length}), mine.data(), bytes, [&] { is_released = true; });
            worker.send(1, key, std::move(lent), 1s);
            bool is_dead = true;
            const size_t got = server.recv_into(1, key, into.data(), bytes, 10s, &is_dead);
            is_right = is_right && got == bytes && into == mine && !is_dead;
            worker.shutdown(1s);
        }
        is_right = is_right && is_released;

        try {
            /* The wrapper has no deadlines of steps: its handle does. */
            rendez::check(rendez::api().step_deadline(server.get(), 2, 10000000));
            server.recv(2, key);
            is_right = false;
        } catch (const rendez::Error &error) {
            std::cout << "nothing more came: " << error.what() << " [" << error.reason() << "]\n";
        }
        std::cout << (is_right ? "all as it should be\n" : "something is wrong\n");
        return is_right ? 0 : 1;
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
