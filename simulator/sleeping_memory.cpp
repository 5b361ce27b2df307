#include "simulator/sleeping_memory.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/format.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"
#include "simulator/notes.h"

namespace cachalot::simulator {

// The first range that ends behind the address.
std::map<Address, SleepingMemory::Asleep>::iterator SleepingMemory::first_behind(Address address) {
  auto at = asleep_.upper_bound(address);
  if (at != asleep_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > address) --at;
  return at;
}

void SleepingMemory::add(const AddressRange& range) {
  remove(range);
  asleep_[range.address] = {range.bytes, watch_.is_on() ? CallStack::capture() : CallStack()};
}

void SleepingMemory::remove(const AddressRange& range) {
  const Address end = range.address + range.bytes;
  for (auto at = first_behind(range.address); at != asleep_.end() && at->first < end;) {
    const Address begin = at->first;
    const Asleep old = at->second;
    at = asleep_.erase(at);
    if (begin < range.address) asleep_[begin] = {range.address - begin, old.stack};
    if (begin + old.bytes > end) asleep_[end] = {begin + old.bytes - end, old.stack};
  }
}

void SleepingMemory::require_awake(const char* call, const void* start, std::size_t bytes) {
  if (asleep_.empty() || bytes == 0) return;
  const auto address = reinterpret_cast<Address>(start);
  const auto at = first_behind(address);
  if (at == asleep_.end() || at->first >= address + bytes) return;
  const std::string text = formatted(
      "{} uses [{:#x}, +{}), but [{:#x}, +{}) is asleep, or was freed: cuMemUnmap took its memory, and only its "
      "addresses "
      "are left. Wake it first (restore_physical)",
      call, address, bytes, at->first, at->second.bytes);
  if (watch_.is_on())
    watch_.note(text, at->second.stack);
  else
    note_once(text);
  throw CudaError(formatted("{} of memory that is asleep", call), static_cast<int>(CudaCode::invalid_value), text);
}

}  // namespace cachalot::simulator
