// Uses of the allocator's locks that the compilers must accept, and with one of these macros refuse
// (check_locks.cmake).
#include "heap/heap_state.h"
#include "heap/ledger.h"

namespace cachalot {

std::size_t counted(HeapState& state, Held& held) CACHALOT_HELD;
std::size_t counted(HeapState& state, Held& held) {
  {
    const Unlocked unlocked(held);
#ifdef CACHALOT_PLANT_ACCESS_WHILE_LET_GO
    ++state.modes;
#endif
  }
  return state.ledger.held_bytes(held);
}

std::size_t count(HeapState& state) {
  const DeviceLock lock(state.mutex);
  return counted(state, lock);
}

#ifdef CACHALOT_PLANT_UNLOCKED_READ
bool is_aging(const HeapState& state) { return (state.modes & HeapState::kAging) != 0; }
#endif

#ifdef CACHALOT_PLANT_UNLOCKED_WRITE
void start_capture(HeapState& state) { ++state.captures; }
#endif

#ifdef CACHALOT_PLANT_UNLOCKED_CALL
void redirect(HeapState& state, const Held& held) { state.set_mode(HeapState::kRedirecting, true, held); }
#endif

// These two GCC refuses as well.
#ifdef CACHALOT_PLANT_CALL_WITHOUT_TOKEN
void redirect(HeapState& state) { state.set_mode(HeapState::kRedirecting, true, HeapState::is_live); }
#endif

#ifdef CACHALOT_PLANT_LETTING_GO_OF_A_CONST_TOKEN
void let_go(const Held& held) { const Unlocked unlocked(held); }
#endif

}  // namespace cachalot
