#include "cachalot/change.h"

namespace cachalot {

const char* to_string(Change::Action action) {
  switch (action) {
    case Change::Action::alloc:
      return "alloc";
    case Change::Action::free_requested:
      return "free_requested";
    case Change::Action::free_completed:
      return "free_completed";
    case Change::Action::segment_alloc:
      return "segment_alloc";
    case Change::Action::segment_free:
      return "segment_free";
    case Change::Action::segment_map:
      return "segment_map";
    case Change::Action::segment_unmap:
      return "segment_unmap";
    case Change::Action::snapshot:
      return "snapshot";
    case Change::Action::oom:
      return "oom";
    case Change::Action::synchronize:
      return "synchronize";
    case Change::Action::retry:
      return "retry";
    case Change::Action::empty_cache:
      return "empty_cache";
  }
  return "unknown";
}

}  // namespace cachalot
