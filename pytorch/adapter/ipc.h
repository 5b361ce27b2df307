// Sharing memory between processes, in the byte format of PyTorch's own allocator, so that either end may be that one.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <torch/version.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapter/conversions.h"
#include "adapter/ipc_bytes.h"
#include "cachalot/device.h"
#include "plug.h"

namespace cachalot::torch_adapter {

// The version that torch writes, as seen in 2.11 to 2.15.
inline constexpr char kIpcVersion = TORCH_VERSION_MINOR >= 13 ? 3 : 2;

// --- descriptors of other processes ---

// The numbers of x86-64, for C libraries that do not know these calls (new in Linux 5.3 and 5.6).
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

// The files behind descriptors of another process, as descriptors of this one, open as long as the object lives.
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
    SentMemory sent = as_torch([&] { return from_bytes(bytes, kIpcVersion); });
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
