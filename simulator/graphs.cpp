#include "simulator/graphs.h"

#include <algorithm>
#include <unordered_map>

namespace cachalot::simulator {

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
    for (GraphNode*& dependency : copy.dependencies) dependency = copies.at(dependency);
    if (node->child) {
      copy.child = &make();
      copy.child->owned = true;
      append_copy(*copy.child, *node->child);
    }
    to.nodes.push_back(&copy);
    copies.emplace(node, &copy);
  }
}

void Graphs::flatten(const Graph& graph, GraphExec& exec) {
  for (const GraphNode* node : graph.nodes) {
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

GraphExec& Graphs::instantiate(const Graph& graph, unsigned long long flags) {
  GraphExec& exec = execs_.make();
  exec.flags = flags;
  flatten(graph, exec);
  return exec;
}

}  // namespace cachalot::simulator
