// The runtime's functions about captures and graphs.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "simulator/state/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

// Copies handles of nodes out, in CUDA's manner: with no array, only the count is asked for; elements beyond the end
// of the list are set to null.
cudaError_t give_nodes(const Nodes& nodes, cudaGraphNode_t* handles, std::size_t* count) {
  if (handles) {
    for (std::size_t i = 0; i < *count; ++i) handles[i] = i < nodes.size() ? Graphs::handle(*nodes[i]) : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return cudaSuccess;
}

// Adds a node whose kind is told by its type alone, and lets `fill` do the rest.
template <typename Fill>
cudaError_t add_node(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* dependencies, std::size_t count,
                     cudaGraphNodeType type, Fill&& fill) {
  return runtime_call([&](Process& process) {
    constexpr auto kCall = "cudaGraphAddNode";
    const Nodes after = process.graphs().nodes(kCall, dependencies, count);
    GraphNode& node = process.graphs().add(process.graphs().at(kCall, graph), type, after);
    fill(process, node);
    *made = Graphs::handle(node);
  });
}

// A node that costs a launch and does nothing: what a graph copies or fills it does not.
cudaError_t add_work(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* dependencies, std::size_t count,
                     cudaGraphNodeType type) {
  return add_node(made, graph, dependencies, count, type,
                  [](Process& process, GraphNode& node) { node.duration_ns = process.config().launch_ns; });
}

cudaError_t instantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return runtime_call([&](Process& process) {
    const Graph& wanted = process.graphs().at("cudaGraphInstantiate", graph);
    *exec = Graphs::handle(process.graphs().instantiate(wanted, flags, process.contexts().current()));
  });
}

cudaStreamCaptureStatus capture_status(Process& process, const StreamState& stream) {
  process.implicit_order().refuse_question("cudaStreamIsCapturing", stream);
  return process.captures().status(stream);
}

void launch_node(Process& process, StreamState& stream, const GraphNode& node) {
  constexpr auto kCall = "cudaGraphLaunch";
  if (node.type == cudaGraphNodeTypeHost)
    process.host_functions().launch(stream, node.host_function, node.host_data);
  else if (node.type == cudaGraphNodeTypeEventRecord)
    process.events().record(process.events().at(kCall, node.event), stream);
  else if (node.type == cudaGraphNodeTypeWaitEvent)
    process.events().wait(stream, process.events().at(kCall, node.event));
  else
    process.launches().launch_node(stream, node);
  for (const WrittenRange& range : node.unknown) {
    const bool is_there = process.devices().find_owner(reinterpret_cast<Address>(range.start)) != nullptr;
    if (is_there) process.copies().make_unknown(range.start, range.bytes);
  }
}

void launch_graph(Process& process, StreamState& stream, const GraphExec& exec) {
  if (stream.capture) return process.launches().capture_graph(stream, exec);
  process.implicit_order().join(stream);
  for (const GraphNode* node : exec.nodes) launch_node(process, stream, *node);
}

}  // namespace

extern "C" {

// ---- Captures -------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return runtime_call([&](Process& process) {
    process.captures().begin(process.streams().at("cudaStreamBeginCapture", stream), mode, nullptr, {});
  });
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData*, size_t count, cudaStreamCaptureMode mode) {
  return runtime_call([&](Process& process) {
    constexpr auto kCall = "cudaStreamBeginCaptureToGraph";
    process.captures().begin(process.streams().at(kCall, stream), mode, &process.graphs().at(kCall, graph),
                             process.graphs().nodes(kCall, dependencies, count));
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return runtime_call([&](Process& process) {
    *graph = nullptr;
    *graph = Graphs::handle(process.captures().end(process.streams().at("cudaStreamEndCapture", stream)));
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return runtime_call([&](Process& process) {
    *status = capture_status(process, process.streams().at("cudaStreamIsCapturing", stream));
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  return runtime_call([&](Process& process) {
    StreamState& stream = process.streams().at("cudaStreamGetCaptureInfo", handle);
    *status = capture_status(process, stream);
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    if (id) *id = stream.capture->id;
    if (graph) *graph = Graphs::handle(*stream.capture->graph);
    // A node's handle is its address, so that the frontier is an array of handles as it stands.
    if (dependencies) *dependencies = reinterpret_cast<const cudaGraphNode_t*>(stream.frontier.data());
    if (edges) *edges = nullptr;
    if (count) *count = stream.frontier.size();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData*, size_t count, unsigned int flags) {
  return runtime_call([&](Process& process) {
    constexpr auto kCall = "cudaStreamUpdateCaptureDependencies";
    StreamState& stream = process.streams().at(kCall, handle);
    if (!stream.capture) return cudaErrorIllegalState;
    const Nodes nodes = process.graphs().nodes(kCall, dependencies, count);
    if (flags == cudaStreamSetCaptureDependencies) stream.frontier.clear();
    for (GraphNode* node : nodes) {
      if (std::find(stream.frontier.begin(), stream.frontier.end(), node) == stream.frontier.end())
        stream.frontier.push_back(node);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return runtime_call([&](Process&) { std::swap(*mode, this_thread().capture_mode); });
}

// ---- Graphs ---------------------------------------------------------------------------------------------------------

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (flags != 0) return cudaErrorInvalidValue;
    *graph = Graphs::handle(process.graphs().make());
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return runtime_call(
      [&](Process& process) { process.graphs().destroy(process.graphs().at("cudaGraphDestroy", graph)); });
}

cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return runtime_call([&](Process& process) {
    const Graph& original = process.graphs().at("cudaGraphClone", graph);
    Graph& copy = process.graphs().make();
    process.graphs().append_copy(copy, original);
    *clone = Graphs::handle(copy);
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return runtime_call([&](Process& process) {
    return give_nodes(process.graphs().at("cudaGraphGetNodes", graph).nodes, nodes, count);
  });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return runtime_call([&](Process& process) {
    Nodes roots = process.graphs().at("cudaGraphGetRootNodes", graph).nodes;
    std::erase_if(roots, [](const GraphNode* node) { return !node->dependencies.empty(); });
    return give_nodes(roots, nodes, count);
  });
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, cudaGraphEdgeData* edges,
                                         size_t* count) {
  return runtime_call([&](Process& process) {
    const Nodes& nodes = process.graphs().node("cudaGraphNodeGetDependencies", node).dependencies;
    if (edges) std::fill_n(edges, std::min(*count, nodes.size()), cudaGraphEdgeData{});
    return give_nodes(nodes, dependencies, count);
  });
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t handle, cudaGraphNode_t* dependents,
                                           cudaGraphEdgeData* edges, size_t* count) {
  return runtime_call([&](Process& process) {
    GraphNode& node = process.graphs().node("cudaGraphNodeGetDependentNodes", handle);
    Nodes found = node.graph->nodes;
    std::erase_if(found, [&](const GraphNode* other) {
      return std::find(other->dependencies.begin(), other->dependencies.end(), &node) == other->dependencies.end();
    });
    if (edges) std::fill_n(edges, std::min(*count, found.size()), cudaGraphEdgeData{});
    return give_nodes(found, dependents, count);
  });
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                              size_t* count) {
  return runtime_call([&](Process& process) {
    Nodes begins;
    Nodes ends;
    for (GraphNode* node : process.graphs().at("cudaGraphGetEdges", graph).nodes) {
      for (GraphNode* before : node->dependencies) {
        begins.push_back(before);
        ends.push_back(node);
      }
    }
    if (edges) std::fill_n(edges, std::min(*count, begins.size()), cudaGraphEdgeData{});
    size_t first_count = *count;
    give_nodes(begins, from, &first_count);
    return give_nodes(ends, to, count);
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return runtime_call([&](Process& process) { *type = process.graphs().node("cudaGraphNodeGetType", node).type; });
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  return runtime_call(
      [&](Process& process) { process.graphs().destroy_node(process.graphs().node("cudaGraphDestroyNode", node)); });
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                  size_t count) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeEmpty, [](Process&, GraphNode&) {});
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaKernelNodeParams* params) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeKernel, [&](Process& process, GraphNode& made) {
    made.duration_ns = process.config().launch_ns;
    made.kernel = *params;
  });
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaMemcpy3DParms*) {
  return add_work(node, graph, dependencies, count, cudaGraphNodeTypeMemcpy);
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                     size_t count, void*, const void*, size_t, cudaMemcpyKind) {
  return add_work(node, graph, dependencies, count, cudaGraphNodeTypeMemcpy);
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaMemsetParams*) {
  return add_work(node, graph, dependencies, count, cudaGraphNodeTypeMemset);
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                 size_t count, const cudaHostNodeParams* params) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeHost, [&](Process&, GraphNode& made) {
    made.host_function = params->fn;
    made.host_data = params->userData;
  });
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                       size_t count, cudaGraph_t child) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeGraph, [&](Process& process, GraphNode& made) {
    made.child = &process.graphs().make();
    process.graphs().append_copy(*made.child, process.graphs().at("cudaGraphAddChildGraphNode", child));
  });
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                        size_t count, cudaEvent_t event) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeEventRecord,
                  [&](Process&, GraphNode& made) { made.event = event; });
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                      size_t count, cudaEvent_t event) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeWaitEvent,
                  [&](Process&, GraphNode& made) { made.event = event; });
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t handle, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData*, size_t count) {
  return runtime_call([&](Process& process) {
    constexpr auto kCall = "cudaGraphAddDependencies";
    const Graph& graph = process.graphs().at(kCall, handle);
    const Nodes before = process.graphs().nodes(kCall, from, count);
    const Nodes after = process.graphs().nodes(kCall, to, count);
    const auto elsewhere = [&](const GraphNode* node) { return node->graph != &graph; };
    if (std::any_of(before.begin(), before.end(), elsewhere) || std::any_of(after.begin(), after.end(), elsewhere))
      return cudaErrorInvalidValue;
    for (std::size_t i = 0; i < count; ++i) after[i]->dependencies.push_back(before[i]);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t handle, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                        const cudaGraphEdgeData*, size_t count) {
  return runtime_call([&](Process& process) {
    constexpr auto kCall = "cudaGraphRemoveDependencies";
    process.graphs().at(kCall, handle);
    const Nodes before = process.graphs().nodes(kCall, from, count);
    const Nodes after = process.graphs().nodes(kCall, to, count);
    const auto place = [&](std::size_t edge) {
      Nodes& dependencies = after[edge]->dependencies;
      return std::find(dependencies.begin(), dependencies.end(), before[edge]);
    };
    for (std::size_t i = 0; i < count; ++i) {
      if (place(i) == after[i]->dependencies.end()) return cudaErrorInvalidValue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (const auto edge = place(i); edge != after[i]->dependencies.end()) after[i]->dependencies.erase(edge);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* params) {
  return runtime_call([&](Process& process) {
    const GraphNode& kernel = process.graphs().node("cudaGraphKernelNodeGetParams", node);
    if (kernel.type != cudaGraphNodeTypeKernel) return cudaErrorInvalidValue;
    *params = kernel.kernel;
    return cudaSuccess;
  });
}

// ---- Graphs ready to run --------------------------------------------------------------------------------------------

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return instantiate(exec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return instantiate(exec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams* params) {
  params->result_out = cudaGraphInstantiateSuccess;
  params->errNode_out = nullptr;
  return instantiate(exec, graph, params->flags);
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  return runtime_call([&](Process& process) { *flags = process.graphs().exec("cudaGraphExecGetFlags", exec).flags; });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result) {
  return runtime_call([&](Process& process) {
    constexpr auto kCall = "cudaGraphExecUpdate";
    const bool alike = process.graphs().update(process.graphs().exec(kCall, exec), process.graphs().at(kCall, graph));
    if (result) *result = {alike ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged, {}, {}};
    return alike ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    process.graphs().exec("cudaGraphUpload", exec);
    process.streams().at("cudaGraphUpload", stream);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    launch_graph(process, process.streams().at("cudaGraphLaunch", stream),
                 process.graphs().exec("cudaGraphLaunch", exec));
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return runtime_call(
      [&](Process& process) { process.graphs().destroy(process.graphs().exec("cudaGraphExecDestroy", exec)); });
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned int) {
  return runtime_call([&](Process& process) {
    const Graph& printed = process.graphs().at("cudaGraphDebugDotPrint", graph);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "we"), std::fclose);
    if (!file) return cudaErrorOperatingSystem;
    std::fputs("digraph cuda_graph {\n", file.get());
    for (const GraphNode* node : printed.nodes) {
      std::fprintf(file.get(), "  \"%p\" [label=\"type %d\"];\n", static_cast<const void*>(node), node->type);
      for (const GraphNode* before : node->dependencies)
        std::fprintf(file.get(), "  \"%p\" -> \"%p\";\n", static_cast<const void*>(before),
                     static_cast<const void*>(node));
    }
    std::fputs("}\n", file.get());
    return cudaSuccess;
  });
}

}  // extern "C"

CACHALOT_SIMULATOR_PER_THREAD(cudaGraphInstantiateWithParams, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaGraphLaunch, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaGraphUpload, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamBeginCapture, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamBeginCaptureToGraph, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamEndCapture, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetCaptureInfo, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamIsCapturing, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamUpdateCaptureDependencies, ptsz)
