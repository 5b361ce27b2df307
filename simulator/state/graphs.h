// CUDA graphs: a graph is its nodes and their dependencies; launching one costs the sum of its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/base/registry.h"
#include "simulator/models/cuda_abi.h"

namespace cachalot::simulator {

struct DeviceState;
struct Graph;

struct WrittenRange {
  const void* start = nullptr;
  std::size_t bytes = 0;
};

struct GraphNode {
  Graph* graph = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::vector<GraphNode*> dependencies;
  // The node's action, for the types that have one.
  std::int64_t duration_ns = 0;
  cudaHostFn_t host_function = nullptr;
  void* host_data = nullptr;
  cudaEvent_t event = nullptr;
  Graph* child = nullptr;
  cudaKernelNodeParams kernel{};
  std::vector<WrittenRange> unknown;  // memory of the device that a launch writes, with values that nothing computes
};

using Nodes = std::vector<GraphNode*>;

struct Graph {
  Nodes nodes;  // in the order they were added
};

// A graph made ready: what a launch does, in order.
struct GraphExec {
  Nodes nodes;  // copies; the graph they came from may be gone
  unsigned long long flags = 0;
  std::vector<std::unique_ptr<GraphNode>> storage;
  DeviceState* device = nullptr;  // the memory of which it takes
  unsigned long long resets = 0;  // of the device, when it was made: a later one has given the memory back

  std::size_t kernel_nodes() const;
};

class Graphs {
 public:
  Graph& make() { return graphs_.make(); }
  Graph& at(const char* call, cudaGraph_t handle) { return graphs_.at(call, handle); }
  GraphNode& node(const char* call, cudaGraphNode_t handle) { return nodes_.at(call, handle); }
  GraphExec& exec(const char* call, cudaGraphExec_t handle) { return execs_.at(call, handle); }

  GraphNode& add(Graph& graph, cudaGraphNodeType type, const Nodes& dependencies);
  Nodes nodes(const char* call, const cudaGraphNode_t* handles, std::size_t count);
  void destroy_node(GraphNode& node);
  void destroy(Graph& graph);
  // Copies the graph's nodes and their dependencies to the end of `to`; the copy of node i is at i behind the end.
  void append_copy(Graph& to, const Graph& from);

  // Throws cudaErrorMemoryAllocation if the device has no memory for it.
  GraphExec& instantiate(const Graph& graph, unsigned long long flags, DeviceState& device);
  // Takes over the graph's nodes; false, with nothing changed, if their types are not the same.
  bool update(GraphExec& exec, const Graph& graph);
  void destroy(GraphExec& exec);

  static cudaGraph_t handle(const Graph& graph) { return Registry<Graph, cudaGraph_t>::handle(graph); }
  static cudaGraphNode_t handle(const GraphNode& node) { return Registry<GraphNode, cudaGraphNode_t>::handle(node); }
  static cudaGraphExec_t handle(const GraphExec& exec) { return Registry<GraphExec, cudaGraphExec_t>::handle(exec); }

 private:
  // Throws cudaErrorInvalidValue when nodes depend on each other in a circle.
  void flatten(const Graph& graph, GraphExec& exec);

  Registry<Graph, cudaGraph_t> graphs_;
  Registry<GraphNode, cudaGraphNode_t> nodes_;
  Registry<GraphExec, cudaGraphExec_t> execs_;
};

}  // namespace cachalot::simulator
