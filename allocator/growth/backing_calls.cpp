#include "growth/backing_calls.h"

#include <algorithm>
#include <optional>

#include "device/cuda_codes.h"

CACHALOT_BEGIN

bool BackingCalls::make() {
  bool is_made = false;
  try {
    have_memory([&] {
      drop();
      if (!create()) return;
      map();
      is_made = true;
    });
  } catch (...) {
    undo();
    throw;
  }
  if (!is_made) undo();
  return is_made;
}

void BackingCalls::drop() {
  for (std::size_t first = 0; first < plan_.drops.size(); first = dropped) {
    std::size_t next = first;
    Address end = plan_.drops[first].at;
    while (next < plan_.drops.size() && plan_.drops[next].at == end) {
      end += pages_.bytes(pages_.handle(plan_.drops[next++].handle));
    }
    device_.unmap(plan_.drops[first].at, end - plan_.drops[first].at);
    dropped = next;
  }
}

bool BackingCalls::create() {
  created.reserve(plan_.growths.size());
  for (const BackingPlan::Growth& growth : plan_.growths) {
    const std::optional<MemoryHandle> memory = device_.create(growth.pages * pages_.page_bytes());
    if (!memory) return false;
    created.push_back(*memory);
  }
  return true;
}

void BackingCalls::map() {
  std::vector<Mapped> wanted;
  for (std::size_t i = 0; i < created.size(); ++i) {
    wanted.push_back({plan_.growths[i].at, plan_.growths[i].pages * pages_.page_bytes(), created[i], true});
  }
  for (const BackingPlan::Mapping& view : plan_.views) {
    const PhysicalHandle& handle = pages_.handle(view.handle);
    wanted.push_back({view.at, pages_.bytes(handle), handle.memory, false});
  }
  std::sort(wanted.begin(), wanted.end(), [](const Mapped& a, const Mapped& b) { return a.at < b.at; });
  mapped_.reserve(wanted.size());
  for (const Mapped& mapping : wanted) {
    device_.map(mapping.at, mapping.bytes, mapping.memory);
    mapped_.push_back(mapping);
  }
  for (std::size_t i = 0; i < mapped_.size();) {
    Address end = mapped_[i].at;
    const Address begin = end;
    while (i < mapped_.size() && mapped_[i].at == end) end += mapped_[i++].bytes;
    device_.set_access(begin, end - begin, peers_);
  }
}

// Never throws: what the device does not take back is noted.
void BackingCalls::undo() {
  for (const Mapped& mapping : mapped_) {
    try {
      device_.unmap(mapping.at, mapping.bytes);
    } catch (const CudaError&) {
      orphans.push_back({mapping.is_new ? mapping.memory : 0, mapping.bytes, {mapping.at}});
    }
  }
  for (std::size_t i = 0; i < created.size(); ++i) {
    const auto is_it = [&](const Orphan& orphan) { return orphan.memory == created[i]; };
    if (std::any_of(orphans.begin(), orphans.end(), is_it)) continue;
    try {
      device_.release(created[i]);
    } catch (const CudaError&) {
      orphans.push_back({created[i], plan_.growths[i].pages * pages_.page_bytes(), {}});
    }
  }
  created.clear();
}

CACHALOT_END
