#include "tests/steady_state/replaced_new.h"

#include <cstdlib>
#include <new>

namespace cachalot {

thread_local NewCalls new_calls;

void NewCalls::made(std::size_t bytes_asked) {
  if (!counting) return;
  ++count;
  bytes += bytes_asked;
  if (count >= first_failure && count - first_failure < failures) throw std::bad_alloc();
}

}  // namespace cachalot

namespace {

void* counted_malloc(std::size_t bytes) {
  cachalot::new_calls.made(bytes);
  if (void* ptr = std::malloc(bytes == 0 ? 1 : bytes)) return ptr;
  throw std::bad_alloc();
}

void* counted_aligned(std::size_t bytes, std::align_val_t alignment) {
  cachalot::new_calls.made(bytes);
  const auto multiple = static_cast<std::size_t>(alignment);
  if (void* ptr = std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple)) return ptr;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined: where only one of a pair is, GCC sees free() release what operator new gave (-Wmismatched-new-delete).
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted_malloc(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return counted_malloc(bytes); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_aligned(bytes, alignment);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted_aligned(bytes, alignment);
}
[[gnu::noinline]] void operator delete(void* ptr) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete[](void* ptr) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete(void* ptr, std::size_t) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete[](void* ptr, std::size_t) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete(void* ptr, std::align_val_t) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete[](void* ptr, std::align_val_t) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete(void* ptr, std::size_t, std::align_val_t) noexcept { std::free(ptr); }
[[gnu::noinline]] void operator delete[](void* ptr, std::size_t, std::align_val_t) noexcept { std::free(ptr); }
