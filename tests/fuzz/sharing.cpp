// Memory that another process claims to share: its handles are opened, or refused with one error and nothing stays behind.
// The handles are true ones that the fuzzer's bytes change, as values (open_shared) and in the plug-in's bytes.
#include <memory>
#include <string>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "pytorch/adapter/ipc_bytes.h"
#include "tests/fuzz/file.h"

namespace cachalot::fuzz {
namespace {

namespace plug = torch_adapter;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// One process, played by a device of its own.
struct World {
  explicit World(const char* options) : allocator({device}, parse_options(options)) {}

  static std::shared_ptr<SimulatedDevice> make_device() {
    SimulatedDevice::Config config;
    config.memory_bytes = 64 * kMiB;
    config.latency = LatencyModel::none();
    return std::make_shared<SimulatedDevice>(config);
  }
  std::shared_ptr<SimulatedDevice> device = make_device();
  CachingAllocator allocator;
};

// 0, small, page-sized, near 2^64, or as it was.
std::size_t some_size(Bytes& bytes, std::size_t otherwise) {
  switch (bytes.below(8)) {
    case 0:
      return bytes.byte();
    case 1:
      return bytes.byte() * 2 * kMiB;
    case 2:
      return ~std::size_t{0} - bytes.byte() * kMiB;
    case 3:
      return std::size_t{1} << bytes.below(64);
    default:
      return otherwise;
  }
}

class Sharing {
 public:
  explicit Sharing(Bytes& bytes) : bytes_(bytes), file_(bytes.text()) {}

  void play() {
    World sender(bytes_.below(2) == 0 ? "heap:pages,page_size_mb:2" : "");
    World receiver(bytes_.below(2) == 0 ? "heap:pages" : "");
    void* const ptr = sender.allocator.allocate(5 * kMiB);
    SharedMemory memory = sender.allocator.share(ptr);
    if (bytes_.below(2) == 0) change(memory);
    if (bytes_.below(2) == 0) memory = through_bytes(memory);
    open_and_close(receiver, memory);
    expect(receiver.device->used_bytes() == 0, "the receiver has memory of its own");
    expect(receiver.device->live_mappings() == 0, "a mapping stayed");
    expect(receiver.allocator.validate().empty() && sender.allocator.validate().empty(), "an allocator is broken");
    sender.allocator.deallocate(ptr);
    sender.allocator.empty_cache();
    expect(sender.device->used_bytes() == 0, "the sender's memory did not go back");
  }

 private:
  void change(SharedMemory& memory) {
    memory.offset = some_size(bytes_, memory.offset);
    memory.bytes = some_size(bytes_, memory.bytes);
    for (unsigned char& byte : memory.segment.bytes) {
      if (bytes_.below(16) == 1) byte = bytes_.byte();
    }
    if (bytes_.below(4) == 0) memory.handles.resize(bytes_.below(6));
    for (SharedMemory::Handle& handle : memory.handles) change(handle);
  }

  void change(SharedMemory::Handle& handle) {
    handle.bytes = some_size(bytes_, handle.bytes);
    const std::uint32_t dice = bytes_.below(8);
    if (dice == 0) handle.shared.kind = ShareableHandle::Kind::fabric;
    if (dice == 1) handle.shared.descriptor = -1 - bytes_.byte();
    if (dice == 2) handle.shared.descriptor = 1000 + bytes_.byte();
    if (dice == 3) handle.shared.descriptor = file_.descriptor();  // a file of the fuzzer's own bytes
    if (dice == 4) handle.shared.fabric.fill(static_cast<decltype(handle.shared.fabric)::value_type>(bytes_.byte()));
  }

  // Returns the memory as the plug-in sends it, with some of the bytes changed on the way; unchanged if they cannot be
  // read.
  SharedMemory through_bytes(const SharedMemory& memory) {
    try {
      const char version = static_cast<char>(2 + bytes_.below(2));
      std::string text = plug::to_bytes(memory, bytes_.below(2) == 0 ? 0 : 7, version);
      for (std::uint32_t changes = bytes_.below(4); changes > 0; --changes) {
        text[bytes_.word() % text.size()] = static_cast<char>(bytes_.byte());
      }
      if (bytes_.below(4) == 0) text.resize(bytes_.byte());
      const plug::SentMemory sent = plug::from_bytes(text, plug::kNewestIpcVersion);
      expect(sent.memory.handles.size() <= text.size(), "more handles than bytes");
      return sent.memory;
    } catch (const InvalidArgument&) {
      return memory;
    }
  }

  // Opens the memory and closes it: closing must not fail.
  static void open_and_close(World& receiver, const SharedMemory& memory) {
    void* const opened = open(receiver, memory);
    if (opened != nullptr) receiver.allocator.close_shared(opened);
  }

  // Returns null if it is refused.
  static void* open(World& receiver, const SharedMemory& memory) {
    try {
      void* const opened = receiver.allocator.open_shared(memory, 0);
      expect(opened != nullptr, "memory at 0 was opened");
      return opened;
    } catch (const InvalidArgument&) {
    } catch (const OutOfMemory&) {
    } catch (const CudaError&) {
    }
    return nullptr;
  }

  Bytes& bytes_;
  const File file_;
};

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cachalot::Bytes bytes(data, size);
  cachalot::fuzz::Sharing(bytes).play();
  return 0;
}
