// What to record of the changes, and where in the program each came from.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <functional>
#include <vector>

#include "cachalot/change.h"

namespace cachalot {

// Makes the context kept with a change. Called without locks; may be slow.
using ContextRecorder = std::function<Context()>;

struct HistoryOptions {
  // Which changes carry a context: none; segments' (state); allocations' too (alloc); frees' too (all). PyTorch's
  // "record levels".
  enum class Contexts { never, state, alloc, all };
  bool enabled = true;
  std::size_t max_entries = 1;  // of the ring of changes, per device; at least 1
  Contexts contexts = Contexts::never;
  ContextRecorder recorder{};           // required unless contexts is never
  std::function<Context()> annotate{};  // called for every change, under the device's lock: must be quick, call nothing
  bool clear = false;                   // forget the entries recorded so far
  std::vector<Change::Action> skip{};   // actions not recorded
};

}  // namespace cachalot
