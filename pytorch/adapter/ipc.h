// Sharing memory between processes, in the byte format of PyTorch's own allocator, so that either end may be that one.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "adapter/errors.h"
#include "cachalot/shared_memory.h"
#include "plug.h"

namespace cachalot::torch_adapter {

// The bytes are: the format's version, a kind, then
//   kind 'c'  the 64 bytes of a cudaIpcMemHandle_t of the segment;
//   kind 'e'  an expandable segment's: an IpcHeader, then of each handle a file descriptor of the sending process (int)
//             or a fabric handle (64 bytes). All handles are of one size;
//   kind 'p'  cachalot's own, for handles of several sizes: the same with handle_bytes 0, and the sizes (u64) before
//             the handles. PyTorch refuses it as ill-formed.
// What torch 2.11 to 2.15 write was looked at. Version 3, from 2.13 on, has eight bytes more behind the header of kind
// 'e': which of the two the handles are, and four of padding, which torch leaves as they happen to be.
inline constexpr char kIpcVersion = TORCH_VERSION_MINOR >= 13 ? 3 : 2;
inline constexpr char kOldestIpcVersion = 2;
inline constexpr char kIpcSegment = 'c';
inline constexpr char kIpcExpandable = 'e';
inline constexpr char kIpcPages = 'p';

struct IpcHeader {
  std::int32_t process;
  // Padding in PyTorch's. The number of the newest export: the bytes are the key of the receiver's caches, and descriptors
  // of handles that are gone come again.
  std::uint32_t number;
  std::uint64_t handle_bytes;
  std::uint64_t handles;
};
static_assert(sizeof(IpcHeader) == 24);
inline constexpr char kTellsHandleKind = 3;       // from this version on
inline constexpr std::uint64_t kDescriptors = 1;  // torch's Expandable_Segments_Handle_Type
inline constexpr std::uint64_t kFabricHandles = 2;

struct SentMemory {
  SharedMemory memory;  // descriptors are those of the process
  pid_t process = 0;
};

// --- writing ---

template <typename Value>
void append(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline std::string to_bytes(const SharedMemory& memory) {
  std::string bytes{kIpcVersion};
  if (memory.handles.empty()) {
    bytes += kIpcSegment;
    append(bytes, memory.segment);
    return bytes;
  }
  const SharedMemory::Handle& first = memory.handles.front();
  const bool has_one_size = std::all_of(memory.handles.begin(), memory.handles.end(),
                                        [&](const auto& handle) { return handle.bytes == first.bytes; });
  const bool is_fabric = first.shared.kind == ShareableHandle::Kind::fabric;
  bytes += has_one_size ? kIpcExpandable : kIpcPages;
  std::uint32_t number = 0;
  for (const SharedMemory::Handle& handle : memory.handles) number = std::max(number, handle.number);
  append(bytes, IpcHeader{getpid(), number, has_one_size ? first.bytes : 0, memory.handles.size()});
  if (kIpcVersion >= kTellsHandleKind) append(bytes, is_fabric ? kFabricHandles : kDescriptors);
  for (const SharedMemory::Handle& handle : memory.handles) {
    if (!has_one_size) append(bytes, std::uint64_t{handle.bytes});
  }
  for (const SharedMemory::Handle& handle : memory.handles) {
    TORCH_CHECK(handle.shared.kind == first.shared.kind, "memory that is shared in part by files, in part by fabric");
    if (is_fabric) append(bytes, handle.shared.fabric);
    if (!is_fabric) append(bytes, handle.shared.descriptor);
  }
  return bytes;
}

// --- reading ---

template <typename Value>
Value take(std::string_view& bytes) {
  Value value;
  TORCH_CHECK(bytes.size() >= sizeof(value), "a shared CUDA memory handle that is cut short: ", bytes.size(),
              " bytes where ", sizeof(value), " are needed");
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

inline SentMemory parse_handles(char version, std::string_view bytes) {
  SentMemory sent;
  const IpcHeader header = take<IpcHeader>(bytes);
  if (version >= kTellsHandleKind) take<std::uint64_t>(bytes);  // the size tells it, too
  sent.process = header.process;
  TORCH_CHECK(header.handles > 0 && header.handles <= bytes.size() / sizeof(int), "a shared CUDA memory handle of ",
              header.handles, " handles in ", bytes.size(), " bytes");
  sent.memory.handles.resize(header.handles);
  for (SharedMemory::Handle& handle : sent.memory.handles) {
    handle.bytes = header.handle_bytes != 0 ? header.handle_bytes : take<std::uint64_t>(bytes);
  }
  const bool is_fabric = bytes.size() == header.handles * sizeof(ShareableHandle::fabric);
  TORCH_CHECK(is_fabric || bytes.size() == header.handles * sizeof(int), "a shared CUDA memory handle of ",
              header.handles, " handles that have ", bytes.size(), " bytes: each has ", sizeof(int), " or ",
              sizeof(ShareableHandle::fabric));
  for (SharedMemory::Handle& handle : sent.memory.handles) {
    handle.shared.kind = is_fabric ? ShareableHandle::Kind::fabric : ShareableHandle::Kind::descriptor;
    if (is_fabric) handle.shared.fabric = take<decltype(handle.shared.fabric)>(bytes);
    if (!is_fabric) handle.shared.descriptor = take<int>(bytes);
  }
  return sent;
}

inline SentMemory from_bytes(std::string_view bytes) {
  TORCH_CHECK(bytes.size() >= 2, "a shared CUDA memory handle of ", bytes.size(), " bytes: it has at least 2");
  const char version = bytes[0];  // PyTorch reads all but newer ones, too
  TORCH_CHECK(kOldestIpcVersion <= version && version <= kIpcVersion, "a shared CUDA memory handle of version ",
              static_cast<int>(version), ": ", static_cast<int>(kOldestIpcVersion), " to ",
              static_cast<int>(kIpcVersion), " can be read (is the sender's torch a newer one?)");
  const char kind = bytes[1];
  bytes.remove_prefix(2);
  if (kind == kIpcExpandable || kind == kIpcPages) return parse_handles(version, bytes);
  TORCH_CHECK(kind == kIpcSegment, "a shared CUDA memory handle of kind ", static_cast<int>(kind),
              ": it is one of 'c', 'e' and 'p'");
  TORCH_CHECK(bytes.size() == sizeof(IpcHandle), "a shared CUDA memory handle of ", 2 + bytes.size(),
              " bytes: kind 'c' has ", 2 + sizeof(IpcHandle));
  SentMemory sent;
  sent.memory.segment = take<IpcHandle>(bytes);
  return sent;
}

// --- descriptors of other processes ---

// The numbers of x86-64, for C libraries that do not know these calls (new in Linux 5.3 and 5.6).
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

// The files behind descriptors of another process, as descriptors of this one, open as long as this lives.
class TakenDescriptors {
 public:
  // Replaces the descriptors in `sent`.
  explicit TakenDescriptors(SentMemory& sent) {
    for (SharedMemory::Handle& handle : sent.memory.handles) {
      if (handle.shared.kind != ShareableHandle::Kind::descriptor) continue;
      if (process_ < 0) process_ = check("pidfd_open", sent.process, syscall(SYS_pidfd_open, sent.process, 0));
      const long taken = syscall(SYS_pidfd_getfd, process_, handle.shared.descriptor, 0);
      handle.shared.descriptor = check("pidfd_getfd", sent.process, taken);
      descriptors_.push_back(handle.shared.descriptor);
    }
  }
  ~TakenDescriptors() { close_all(); }
  TakenDescriptors(const TakenDescriptors&) = delete;
  TakenDescriptors& operator=(const TakenDescriptors&) = delete;

 private:
  int check(const char* call, pid_t process, long result) {
    if (result >= 0) return static_cast<int>(result);
    const int error = errno;
    close_all();  // the destructor does not run
    TORCH_CHECK(
        error != EPERM, call, " of process ", process,
        ": it does not let this process take its file descriptors, which sharing its CUDA memory needs (another "
        "user, a container without ptrace, or kernel.yama.ptrace_scope)");
    TORCH_CHECK(false, call, " of process ", process, ", which shares its CUDA memory: ", std::strerror(error),
                error == ENOSYS ? " (it needs Linux 5.6; expandable_segments:False in that process does without)" : "");
  }
  void close_all() {
    for (const int descriptor : descriptors_) ::close(descriptor);
    if (process_ >= 0) ::close(process_);
  }

  int process_ = -1;
  std::vector<int> descriptors_;
};

// --- opened memory ---

// Other processes' memory, opened once however many tensors of it arrive, and closed with the last of them.
// Thread-safe.
class ImportedSegments {
 public:
  explicit ImportedSegments(Plug& plug) : plug_(plug) {}

  // On the current device, where its segment or first handle begins.
  std::shared_ptr<void> open(const std::string& bytes, c10::DeviceIndex device) {
    SentMemory sent = from_bytes(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = segments_.find(bytes);
    if (known != segments_.end()) {
      if (std::shared_ptr<void> segment = known->second.lock()) return segment;
    }
    const TakenDescriptors taken(sent);
    void* const address = as_torch([&] { return plug_.open_shared(sent.memory, device); });
    std::shared_ptr<void> segment(address, [this, bytes](void* opened) { close(opened, bytes); });
    segments_[bytes] = segment;
    return segment;
  }

 private:
  // Runs in a deleter, so it must not throw: at the end of the process CUDA may be gone already.
  void close(void* address, const std::string& bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = segments_.find(bytes);
    if (known != segments_.end() && known->second.expired()) segments_.erase(known);
    try {
      plug_.close_shared(address);
    } catch (const CudaError& error) {
      TORCH_WARN("cachalot: shared CUDA memory was not closed yet: ", error.what());
    }
  }

  Plug& plug_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> segments_;
};

}  // namespace cachalot::torch_adapter
