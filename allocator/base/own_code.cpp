#include "base/own_code.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

CACHALOT_BEGIN

namespace {

// Code of a library: [begin, end).
struct Range {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  // 0: this range is not in use

  bool contains(std::uintptr_t address) const {
    return address < end.load(std::memory_order_acquire) && address >= begin.load(std::memory_order_relaxed);
  }
};

std::array<Range, 8> ranges;
constinit std::mutex ranges_mutex;  // of those who add

struct Search {
  std::uintptr_t inside;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

int look(dl_phdr_info* library, std::size_t, void* data) {
  Search& search = *static_cast<Search*>(data);
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    if (search.inside < begin || search.inside >= begin + part.p_memsz) continue;
    search.begin = begin;
    search.end = begin + part.p_memsz;
    return 1;
  }
  return 0;
}

}  // namespace

void add_own_code(const void* inside) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(inside)};
  if (is_own_code(search.inside) || dl_iterate_phdr(look, &search) == 0) return;
  const std::lock_guard lock(ranges_mutex);
  if (is_own_code(search.inside)) return;
  const auto free_one = std::ranges::find_if(ranges, [](const Range& range) { return range.end == 0; });
  if (free_one == ranges.end()) return;
  free_one->begin.store(search.begin, std::memory_order_relaxed);
  free_one->end.store(search.end, std::memory_order_release);
}

bool is_own_code(std::uintptr_t address) noexcept {
  return std::ranges::any_of(ranges, [&](const Range& range) { return range.contains(address); });
}

CACHALOT_END
