// What Python sees of this extension: the process group, the RPC agent, and where the library's table comes from.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/extension.h>

#include "arena.hpp"
#include "faulty_agent.hpp"
#include "library.hpp"
#include "process_group.hpp"
#include "rpc_agent.hpp"

namespace rt = rendez_torch;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "PyTorch on rendez: use it by `import rendez.torch`.";

    using Released = py::call_guard<py::gil_scoped_release>;
    m.def(
        "use_table", [](uintptr_t table) { rt::use_table(reinterpret_cast<const rendez_api *>(table)); },
        "Takes the address of rendez' table of functions.");
    m.def(
        "adopt_engine", [](uintptr_t engine) { rt::Node::adopt(reinterpret_cast<rendez_engine *>(engine)); },
        "Uses an engine of this process instead of starting one.");
    m.def(
        "stop_engine", [](double patience) { rt::Node::stop(static_cast<uint64_t>(patience * 1e9)); },
        py::arg("patience"), py::call_guard<py::gil_scoped_release>(),
        "Ends the engine: what was sent has so many seconds to arrive.");
    m.def(
        "shutdown_groups", [] { rt::ProcessGroupRendez::shutdown_all(); }, Released(),
        "Shuts down all groups that live: what they sent has a few seconds to be received.");
    m.def(
        "task", [] { return rt::Node::get()->task().name; }, py::call_guard<py::gil_scoped_release>(),
        "The name of this process's task.");
    m.def(
        "use_arena", [](size_t minimum) { return rt::use_arena(minimum); }, py::arg("minimum"), Released(),
        "Has torch allocate CPU memory of so many bytes or more from the engine's; gives what was set before.");
    m.def(
        "arena_counts",
        [] {
            auto counts = rt::arena_counts();
            return std::map<std::string, uint64_t>{
                {"blocks", counts.blocks}, {"bytes", counts.bytes}, {"lent", counts.lent}, {"refused", counts.refused}};
        },
        "What torch has of the engine's memory.");
    m.def(
        "create_process_group",
        [](const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout,
           std::string name) -> c10::intrusive_ptr<c10d::Backend> {
            return c10::make_intrusive<rt::ProcessGroupRendez>(store, rank, size, timeout, std::move(name));
        },
        py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name") = "rendez",
        py::call_guard<py::gil_scoped_release>(), "A process group whose members meet over the store.");

    // Its types must be known before ours derive from them.
    py::module_::import("torch.distributed.rpc");
    using Base = torch::distributed::rpc::RpcAgent;
    // torch binds the look-up by name only on the base: by number each agent does.
    py::class_<rt::RendezAgent, Base, std::shared_ptr<rt::RendezAgent>>(m, "RendezAgent")
        .def(py::init([](const c10::intrusive_ptr<c10d::Store> &store, std::string name, rt::worker_id_t rank,
                         int world_size, float timeout, int threads, rt::DeviceMaps device_maps,
                         std::vector<c10::Device> devices) {
                 py::gil_scoped_release released;
                 return std::shared_ptr<rt::RendezAgent>(
                     new rt::RendezAgent(store, std::move(name), rank, world_size, timeout, threads,
                                         std::move(device_maps), std::move(devices)),
                     torch::impl::destroy_without_gil<rt::RendezAgent>);
             }),
             py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("world_size"), py::arg("rpc_timeout"),
             py::arg("num_worker_threads"), py::arg("device_maps"), py::arg("devices"))
        .def(
            "get_worker_info",
            [](const rt::RendezAgent &agent) { return static_cast<const Base &>(agent).getWorkerInfo(); }, Released())
        .def(
            "get_worker_info",
            [](const rt::RendezAgent &agent, const std::string &name) { return agent.getWorkerInfo(name); }, Released())
        .def(
            "get_worker_info", [](const rt::RendezAgent &agent, rt::worker_id_t id) { return agent.getWorkerInfo(id); },
            Released())
        .def_property_readonly("is_static_group", &rt::RendezAgent::is_static)
        .def("announce", &rt::RendezAgent::announce, py::arg("is_join"), py::arg("timeout"), Released());

    py::class_<rt::FaultyAgent, rt::RendezAgent, std::shared_ptr<rt::FaultyAgent>>(m, "FaultyAgent")
        .def(py::init([](const c10::intrusive_ptr<c10d::Store> &store, std::string name, rt::worker_id_t rank,
                         int world_size, float timeout, int threads, const std::vector<std::string> &failures,
                         const std::unordered_map<std::string, float> &delays, int times) {
                 py::gil_scoped_release released;
                 return std::shared_ptr<rt::FaultyAgent>(new rt::FaultyAgent(store, std::move(name), rank, world_size,
                                                                             timeout, threads,
                                                                             rt::Faults(failures, delays, times)),
                                                         torch::impl::destroy_without_gil<rt::FaultyAgent>);
             }),
             py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("world_size"), py::arg("rpc_timeout"),
             py::arg("num_worker_threads"), py::arg("messages_to_fail"), py::arg("messages_to_delay"),
             py::arg("num_fail_sends"));
}
