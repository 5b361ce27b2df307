// Places in a program: which frame of a call stack a reader looks for, and trees of calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

// The frames of a call stack that a tree of calls shows: the program's own, also those of libraries other than PyTorch, or
// all.
enum class Frames { own, library, all };

// The owner of a frame's code.
enum class Origin : std::uint8_t { own, library, torch, machine };  // machine: C++ and the interpreter

// Returns the origin of a file's code. PyTorch and Python's standard library are not the program's own; nor is what pip
// installed.
Origin origin_of(std::string_view file);

// Remembers what it has found of each file and stack. The history must outlive it. Not thread-safe.
class Sites {
 public:
  explicit Sites(const History& history) : history_(history) {}

  // Returns whether a tree of `frames` shows the frame: own code, libraries other than PyTorch as well, or everything.
  bool shows(FrameId frame, Frames frames);
  Origin origin(FrameId frame);
  // Returns whether the frame is of the simulator's Python, which computes operations in the place of a GPU.
  bool is_of_simulator(FrameId frame) const;

  // Returns the newest frame of the stack that `frames` shows: where the program asked for memory. Without one, the newest frame
  // of Python code, else that of an operation of PyTorch, else the newest of all. The stack must not be 0.
  FrameId place_of(StackId stack, Frames frames = Frames::own);
  // Returns the stack in which the program asked for the memory: that of the call of forward, for what its backward pass made.
  StackId telling_stack(StackId stack, DetailsId details);

  // Returns "model.py:42 in forward"; a path is cut to its last two parts. May hold any bytes of the file.
  std::string text_of(FrameId frame) const;
  // Returns the calls of forward in the stack, the outermost first: "gpt.py:120 > block.py:38 > Linear". "" without one.
  const std::string& module_of(StackId stack);

 private:
  FrameId machine_place(std::span<const FrameId> calls) const;
  std::string make_module(StackId stack) const;

  const History& history_;
  std::vector<std::uint8_t> origins_;  // by the text of the file; 0: not yet known
  std::map<std::pair<StackId, Frames>, FrameId> places_;
  std::map<StackId, std::string> modules_;
};

// Calls as a tree: from the outermost call to that which allocated, with the bytes of each.
class StackTree {
 public:
  struct Node {
    FrameId frame = 0;
    std::uint32_t parent = 0;  // the root's is 0
    std::uint64_t bytes = 0;   // with those of the calls inside
    std::uint64_t count = 0;   // of allocations
  };
  static constexpr std::size_t kDeepest = 512;  // calls further in count for the last one

  StackTree(const History& history, Sites& sites, Frames frames)
      : history_(history), sites_(sites), frames_(frames), nodes_(1) {}

  void add(StackId stack, std::uint64_t bytes, std::uint64_t count = 1);

  // The root, which is not a call, comes first; parents come before their children.
  const std::vector<Node>& nodes() const { return nodes_; }
  // Returns the calls of each node, those with most bytes first.
  std::vector<std::vector<std::uint32_t>> children() const;

 private:
  const History& history_;
  Sites& sites_;
  Frames frames_;
  std::vector<Node> nodes_;
  std::map<std::pair<std::uint32_t, FrameId>, std::uint32_t> ids_;  // by parent and frame
};

}  // namespace cachalot::tools
