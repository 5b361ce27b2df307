// Shared memory as bytes, in the format of PyTorch's own allocator. It knows nothing of torch, so that a fuzzer may feed the
// reader without one.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/errors.h"

namespace cachalot::torch_adapter {

// The bytes are: the format's version, a kind, then
//   kind 'c'  the 64 bytes of a cudaIpcMemHandle_t of the segment;
//   kind 'e'  an expandable segment's: an IpcHeader, then of each handle a file descriptor of the sending process (int)
//             or a fabric handle (64 bytes). All handles are of one size;
//   kind 'p'  cachalot's own, for handles of several sizes: the same with handle_bytes 0, and the sizes (u64) before
//             the handles. PyTorch refuses it as ill-formed.
// Version 3, torch's from 2.13 on, has eight bytes more behind the header of kind 'e': which of the two the handles are, and
// four of padding, which torch leaves as they happen to be.
// Behind the handles cachalot writes the key of each (u64), then an IpcTrailer. PyTorch reads past neither. A cachalot that does
// not know them refuses the bytes, as no number of handles has that size.
inline constexpr char kNewestIpcVersion = 3;
inline constexpr char kOldestIpcVersion = 2;
inline constexpr char kIpcSegment = 'c';
inline constexpr char kIpcExpandable = 'e';
inline constexpr char kIpcPages = 'p';

struct IpcHeader {
  std::int32_t process;
  std::uint32_t padding;  // 0; PyTorch's is as it happens to be
  std::uint64_t handle_bytes;
  std::uint64_t handles;
};
static_assert(sizeof(IpcHeader) == 24);
struct IpcTrailer {
  std::uint64_t socket;  // where the process serves the descriptors; 0: nowhere
  std::uint64_t mark;    // kTrailerMark
};
static_assert(sizeof(IpcTrailer) == 16);
inline constexpr std::uint64_t kTrailerMark = 0x31'74'6f'6c'61'68'63'61;  // "achalot1"
inline constexpr char kTellsHandleKind = 3;                               // from this version on
inline constexpr std::uint64_t kDescriptors = 1;                          // torch's Expandable_Segments_Handle_Type
inline constexpr std::uint64_t kFabricHandles = 2;

struct SentMemory {
  SharedMemory memory;  // descriptors are those of the process
  pid_t process = 0;
  std::uint64_t socket = 0;  // 0: the process named none
};

// Throws InvalidArgument with all of `parts` as its text.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

// --- writing ---

template <typename Value>
void append(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// `socket`: where this process serves descriptors; 0: nowhere. Throws InvalidArgument when files and fabric are mixed.
inline std::string to_bytes(const SharedMemory& memory, std::uint64_t socket, char version) {
  std::string bytes{version};
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
  append(bytes, IpcHeader{getpid(), 0, has_one_size ? first.bytes : 0, memory.handles.size()});
  if (version >= kTellsHandleKind) append(bytes, is_fabric ? kFabricHandles : kDescriptors);
  for (const SharedMemory::Handle& handle : memory.handles) {
    if (!has_one_size) append(bytes, std::uint64_t{handle.bytes});
  }
  for (const SharedMemory::Handle& handle : memory.handles) {
    require(handle.shared.kind == first.shared.kind, "memory that is shared in part by files, in part by fabric");
    if (is_fabric) append(bytes, handle.shared.fabric);
    if (!is_fabric) append(bytes, handle.shared.descriptor);
  }
  for (const SharedMemory::Handle& handle : memory.handles) append(bytes, handle.key);
  append(bytes, IpcTrailer{is_fabric ? 0 : socket, kTrailerMark});
  return bytes;
}

// --- reading ---

template <typename Value>
Value take(std::string_view& bytes) {
  Value value;
  require(bytes.size() >= sizeof(value), "a shared CUDA memory handle that is cut short: ", bytes.size(),
          " bytes where ", sizeof(value), " are needed");
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

// Takes what cachalot alone writes from the end of the bytes, if it is there.
inline void take_trailer(std::string_view& bytes, SentMemory& sent) {
  std::vector<SharedMemory::Handle>& handles = sent.memory.handles;
  const std::size_t keys = handles.size() * sizeof(SharedMemory::Handle::key);
  if (bytes.size() < keys + sizeof(IpcTrailer)) return;
  std::string_view tail = bytes.substr(bytes.size() - keys - sizeof(IpcTrailer));
  std::string_view trailer = tail.substr(keys);
  const IpcTrailer taken = take<IpcTrailer>(trailer);
  if (taken.mark != kTrailerMark) return;
  bytes.remove_suffix(tail.size());
  sent.socket = taken.socket;
  for (SharedMemory::Handle& handle : handles) handle.key = take<std::uint64_t>(tail);
}

inline SentMemory parse_handles(char version, std::string_view bytes) {
  SentMemory sent;
  const IpcHeader header = take<IpcHeader>(bytes);
  if (version >= kTellsHandleKind) take<std::uint64_t>(bytes);  // the size tells it, too
  sent.process = header.process;
  require(header.handles > 0 && header.handles <= bytes.size() / sizeof(int), "a shared CUDA memory handle of ",
          header.handles, " handles in ", bytes.size(), " bytes");
  sent.memory.handles.resize(header.handles);
  for (SharedMemory::Handle& handle : sent.memory.handles) {
    handle.bytes = header.handle_bytes != 0 ? header.handle_bytes : take<std::uint64_t>(bytes);
  }
  take_trailer(bytes, sent);
  const bool is_fabric = bytes.size() == header.handles * sizeof(ShareableHandle::fabric);
  require(is_fabric || bytes.size() == header.handles * sizeof(int), "a shared CUDA memory handle of ", header.handles,
          " handles that have ", bytes.size(), " bytes: each has ", sizeof(int), " or ",
          sizeof(ShareableHandle::fabric), " (is the sender's cachalot of another version?)");
  for (SharedMemory::Handle& handle : sent.memory.handles) {
    handle.shared.kind = is_fabric ? ShareableHandle::Kind::fabric : ShareableHandle::Kind::descriptor;
    if (is_fabric) handle.shared.fabric = take<decltype(handle.shared.fabric)>(bytes);
    if (!is_fabric) handle.shared.descriptor = take<int>(bytes);
  }
  return sent;
}

// `newest` is the latest version that is read. Throws InvalidArgument for other bytes.
inline SentMemory from_bytes(std::string_view bytes, char newest) {
  require(bytes.size() >= 2, "a shared CUDA memory handle of ", bytes.size(), " bytes: it has at least 2");
  const char version = bytes[0];  // PyTorch reads all but newer ones, too
  require(kOldestIpcVersion <= version && version <= newest, "a shared CUDA memory handle of version ",
          static_cast<int>(version), ": ", static_cast<int>(kOldestIpcVersion), " to ", static_cast<int>(newest),
          " can be read (is the sender's torch a newer one?)");
  const char kind = bytes[1];
  bytes.remove_prefix(2);
  if (kind == kIpcExpandable || kind == kIpcPages) return parse_handles(version, bytes);
  require(kind == kIpcSegment, "a shared CUDA memory handle of kind ", static_cast<int>(kind),
          ": it is one of 'c', 'e' and 'p'");
  require(bytes.size() == sizeof(IpcHandle), "a shared CUDA memory handle of ", 2 + bytes.size(),
          " bytes: kind 'c' has ", 2 + sizeof(IpcHandle));
  SentMemory sent;
  sent.memory.segment = take<IpcHandle>(bytes);
  return sent;
}

}  // namespace cachalot::torch_adapter
