#include "pytorch/library_hooks.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/json_writer.h"
#include "pytorch/guarded.h"
#include "pytorch/process.h"

namespace cachalot {
namespace {

constexpr std::size_t kMessageBytes = 4096;

// The thread's last failure. No object, since memory may be freed after a thread has destroyed those; and small, since the
// library takes its thread-local memory from what the linker keeps for libraries that are loaded late.
thread_local int last_code = 0;
thread_local char* last_message = nullptr;  // malloc's; null also where that had no memory

void keep(int code, const char* message) noexcept {
  std::free(std::exchange(last_message, strdup(message)));
  last_code = code;
}

// What `action` returns; `failed` after an error, which is kept.
template <typename Result, typename Action>
Result kept_errors(Result failed, Action action) noexcept {
  Result result = failed;
  char message[kMessageBytes];
  const int code = guarded(message, kMessageBytes, [&] { return result = action(), 0; });
  if (code != 0) keep(code, message);
  return result;
}

LibraryMemory& required(LibraryMemory* library) {
  CACHALOT_REQUIRE(library != nullptr, "library is NULL; it must be cachalot_plug_library's");
  return *library;
}

// As cachalot.LibraryUsage has them.
std::string usage_json() {
  JsonWriter json;
  json.list(LibraryMemory::usage(), [](JsonWriter& out, const LibraryUsage& usage) {
    out.begin_object()
        .member("library", usage.library)
        .member("device", usage.device)
        .member("live_bytes", usage.live_bytes)
        .member("peak_bytes", usage.peak_bytes)
        .member("allocations", usage.allocations)
        .member("frees", usage.frees)
        .end_object();
  });
  return json.take();
}

}  // namespace

void keep_library_error(int code, const char* message) noexcept { keep(code, message); }

}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

int cachalot_plug_library(const char* name, LibraryMemory** library, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(name != nullptr && library != nullptr, "name or library is NULL; each must point to something");
    *library = &LibraryMemory::of(name);
    Process::instance().expect_other_libraries();
    return 0;
  });
}

void* cachalot_library_malloc(LibraryMemory* library, std::size_t bytes, int device, Stream stream) {
  return kept_errors<void*>(nullptr, [&] { return required(library).allocate(bytes, device, stream); });
}

int cachalot_library_free(LibraryMemory* library, void* ptr) {
  return kept_errors(-1, [&] { return required(library).deallocate(ptr), 0; });
}

int cachalot_library_free_after(LibraryMemory* library, void* ptr, Stream stream) {
  return kept_errors(-1, [&] { return required(library).deallocate(ptr, stream), 0; });
}

int cachalot_library_last_error(char* text, std::size_t capacity) {
  char* const message = std::exchange(last_message, nullptr);
  copy_text(message == nullptr ? "" : message, text, capacity);
  std::free(message);
  return std::exchange(last_code, 0);
}

long cachalot_plug_library_usage(char* text, long capacity) { return guarded_text(text, capacity, usage_json); }
