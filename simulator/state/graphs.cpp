#include "simulator/state/graphs.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "simulator/state/devices.h"

namespace cachalot::simulator {
namespace {

// The nodes, each behind those it depends on and otherwise in the order they were added.
Nodes in_order(const Graph& graph) {
  std::unordered_map<const GraphNode*, std::vector<std::size_t>> dependents;
  std::vector<std::size_t> missing(graph.nodes.size());
  std::set<std::size_t> ready;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    missing[i] = graph.nodes[i]->dependencies.size();
    for (const GraphNode* before : graph.nodes[i]->dependencies) dependents[before].push_back(i);
    if (missing[i] == 0) ready.insert(i);
  }
  Nodes ordered;
  while (!ready.empty()) {
    ordered.push_back(graph.nodes[ready.extract(ready.begin()).value()]);
    for (const std::size_t dependent : dependents[ordered.back()]) {
      if (--missing[dependent] == 0) ready.insert(dependent);
    }
  }
  if (ordered.size() < graph.nodes.size())
    fail("cudaGraphInstantiate", CudaCode::invalid_value, "nodes depend on each other in a circle");
  return ordered;
}

}  // namespace

GraphNode& Graphs::add(Graph& graph, cudaGraphNodeType type, const Nodes& dependencies) {
  GraphNode& node = nodes_.make();
  node.graph = &graph;
  node.type = type;
  node.dependencies = dependencies;
  graph.nodes.push_back(&node);
  return node;
}

Nodes Graphs::nodes(const char* call, const cudaGraphNode_t* handles, std::size_t count) {
  Nodes found;
  for (std::size_t i = 0; i < count; ++i) found.push_back(&node(call, handles[i]));
  return found;
}

void Graphs::destroy_node(GraphNode& node) {
  if (node.child) destroy(*node.child);
  for (GraphNode* other : node.graph->nodes) std::erase(other->dependencies, &node);
  std::erase(node.graph->nodes, &node);
  nodes_.destroy(node);
}

void Graphs::destroy(Graph& graph) {
  for (GraphNode* node : graph.nodes) {
    if (node->child) destroy(*node->child);
    nodes_.destroy(*node);
  }
  graphs_.destroy(graph);
}

void Graphs::append_copy(Graph& to, const Graph& from) {
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const GraphNode* node : from.nodes) {
    GraphNode& copy = nodes_.make(*node);
    copy.graph = &to;
    if (node->child) {
      copy.child = &make();
      append_copy(*copy.child, *node->child);
    }
    to.nodes.push_back(&copy);
    copies.emplace(node, &copy);
  }
  for (const auto& [node, copy] : copies) {
    for (GraphNode*& dependency : copy->dependencies) dependency = copies.at(dependency);
  }
}

void Graphs::flatten(const Graph& graph, GraphExec& exec) {
  for (const GraphNode* node : in_order(graph)) {
    if (node->child) {
      flatten(*node->child, exec);
      continue;
    }
    exec.storage.push_back(std::make_unique<GraphNode>(*node));
    exec.nodes.push_back(exec.storage.back().get());
  }
}

bool Graphs::update(GraphExec& exec, const Graph& graph) {
  GraphExec fresh;
  flatten(graph, fresh);
  const auto same_type = [](const GraphNode* one, const GraphNode* other) { return one->type == other->type; };
  if (!std::equal(exec.nodes.begin(), exec.nodes.end(), fresh.nodes.begin(), fresh.nodes.end(), same_type))
    return false;
  exec.nodes = std::move(fresh.nodes);
  exec.storage = std::move(fresh.storage);
  return true;
}

std::size_t GraphExec::kernel_nodes() const {
  const auto is_kernel = [](const GraphNode* node) { return node->type == cudaGraphNodeTypeKernel; };
  return static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), is_kernel));
}

GraphExec& Graphs::instantiate(const Graph& graph, unsigned long long flags, DeviceState& device) {
  GraphExec fresh;
  fresh.flags = flags;
  fresh.device = &device;
  fresh.resets = device.resets;
  flatten(graph, fresh);
  device.add_graph(fresh.kernel_nodes());
  return execs_.make(std::move(fresh));
}

void Graphs::destroy(GraphExec& exec) {
  if (exec.resets == exec.device->resets) exec.device->remove_graph(exec.kernel_nodes());
  execs_.destroy(exec);
}

}  // namespace cachalot::simulator
