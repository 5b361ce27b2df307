#include "cachalot/buffers.h"

#include <utility>

#include "base/check.h"
#include "cachalot/device.h"
#include "device/addresses.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

namespace {

// Work queued on `to` from now on comes after the work queued on `from` so far.
void order(Device& device, Stream from, Stream to) {
  struct Marker {
    explicit Marker(Device& owner) : device(owner), event(owner.event_create()) {}
    ~Marker() {
      try {
        device.event_destroy(event);
      } catch (const CudaError&) {  // the device was reset: the event is gone
      }
    }
    Marker(const Marker&) = delete;
    Marker& operator=(const Marker&) = delete;
    Device& device;
    Event event;
  } const marker(device);
  device.event_record(marker.event, from);
  device.stream_wait(to, marker.event);
}

}  // namespace

DeviceBuffer::DeviceBuffer(CachingAllocator& allocator, std::size_t bytes, Stream stream, int device)
    : stream_(stream), device_(device) {
  require_stream_of_device(*allocator.device(device), stream);
  data_ = allocator.allocate(bytes, device, stream);
  size_ = capacity_ = bytes;
  allocator_ = &allocator;
  life_ = allocator.life();
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  DeviceBuffer taken(std::move(other));
  swap(taken);
  return *this;
}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(life_, other.life_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(stream_, other.stream_);
  std::swap(device_, other.device_);
}

void DeviceBuffer::reset() noexcept {
  void* const memory = release();
  if (memory != nullptr && !life_.expired()) allocator_->deallocate_when_possible(memory);
}

void* DeviceBuffer::release() noexcept {
  size_ = capacity_ = 0;
  return std::exchange(data_, nullptr);
}

Device& DeviceBuffer::usable(const char* call) const {
  CACHALOT_REQUIRE(allocator_ != nullptr, "{} of a buffer without an allocator: it was made without one, or moved from",
                   call);
  CACHALOT_REQUIRE(!life_.expired(), "{} of a buffer whose allocator was destroyed", call);
  return *allocator_->device(device_);
}

Device& DeviceBuffer::usable(const char* call, std::size_t bytes, std::size_t offset) const {
  Device& device = usable(call);
  CACHALOT_REQUIRE(offset <= size_ && bytes <= size_ - offset,
                   "{} of {} bytes from byte {} on: the buffer has {} bytes", call, bytes, offset, size_);
  return device;
}

Address DeviceBuffer::address(std::size_t offset) const { return as_address(data_) + offset; }

void DeviceBuffer::move_to_memory_of(std::size_t bytes) {
  DeviceBuffer other(*allocator_, bytes, stream_, device_);
  if (size_ != 0) {
    allocator_->device(device_)->copy(CopyKind::within_device, other.address(0), address(0), size_, stream_);
  }
  other.size_ = size_;
  swap(other);
}

void DeviceBuffer::resize(std::size_t bytes) {
  usable("resize");
  if (bytes > capacity_) move_to_memory_of(bytes);
  size_ = bytes;
}

void DeviceBuffer::reserve(std::size_t bytes) {
  usable("reserve");
  if (bytes > capacity_) move_to_memory_of(bytes);
}

void DeviceBuffer::shrink_to_fit() {
  usable("shrink_to_fit");
  if (size_ < capacity_) move_to_memory_of(size_);
}

void DeviceBuffer::set_stream(Stream stream) {
  Device& device = usable("set_stream");
  if (stream == stream_) return;
  require_stream_of_device(device, stream);
  if (data_ != nullptr) {
    order(device, stream_, stream);
    allocator_->record_stream(data_, stream);
  }
  stream_ = stream;
}

DeviceBuffer DeviceBuffer::clone() const {
  Device& device = usable("clone");
  DeviceBuffer copy(*allocator_, size_, stream_, device_);
  if (size_ != 0) device.copy(CopyKind::within_device, copy.address(0), address(0), size_, stream_);
  return copy;
}

void DeviceBuffer::copy_from_host(const void* source, std::size_t bytes, std::size_t offset) {
  copy_from_host_async(source, bytes, offset);
  if (bytes != 0) wait_for(*allocator_->device(device_), stream_);
}

void DeviceBuffer::copy_to_host(void* destination, std::size_t bytes, std::size_t offset) const {
  copy_to_host_async(destination, bytes, offset);
  if (bytes != 0) wait_for(*allocator_->device(device_), stream_);
}

void DeviceBuffer::copy_from_host_async(const void* source, std::size_t bytes, std::size_t offset) {
  Device& device = usable("copy_from_host", bytes, offset);
  if (bytes != 0) device.copy(CopyKind::from_host, address(offset), as_address(source), bytes, stream_);
}

void DeviceBuffer::copy_to_host_async(void* destination, std::size_t bytes, std::size_t offset) const {
  Device& device = usable("copy_to_host", bytes, offset);
  if (bytes != 0) device.copy(CopyKind::to_host, as_address(destination), address(offset), bytes, stream_);
}

void DeviceBuffer::copy_from_device(const void* source, std::size_t bytes, std::size_t offset) {
  Device& device = usable("copy_from_device", bytes, offset);
  if (bytes != 0) device.copy(CopyKind::within_device, address(offset), as_address(source), bytes, stream_);
}

CACHALOT_END
