// A device that passes every call on to another, with something done around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cachalot/device.h"

namespace cachalot {

// `Around` is made before each call, from a reference to the device, and goes after it.
template <typename Derived, typename Around>
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}

#define CACHALOT_FORWARD(call)                               \
  {                                                          \
    const Around around(static_cast<const Derived&>(*this)); \
    return device_->call;                                    \
  }
  // Neither asks the driver.
  int index() const override { return device_->index(); }
  DeviceProperties properties() const override { return device_->properties(); }
  MemoryInfo memory_info() override
      CACHALOT_FORWARD(memory_info()) std::optional<Address> malloc(std::size_t bytes) override
      CACHALOT_FORWARD(malloc(bytes)) std::optional<Address> malloc_managed(std::size_t bytes) override
      CACHALOT_FORWARD(malloc_managed(bytes)) void free(Address address) override
      CACHALOT_FORWARD(free(address)) std::optional<Address> reserve(std::size_t bytes) override
      CACHALOT_FORWARD(reserve(bytes)) void unreserve(Address address, std::size_t bytes) override
      CACHALOT_FORWARD(unreserve(address, bytes)) std::optional<MemoryHandle> create(std::size_t bytes) override
      CACHALOT_FORWARD(create(bytes)) void release(MemoryHandle handle) override
      CACHALOT_FORWARD(release(handle)) void map(Address address, std::size_t bytes, MemoryHandle handle) override
      CACHALOT_FORWARD(map(address, bytes, handle)) void unmap(Address address, std::size_t bytes) override
      CACHALOT_FORWARD(unmap(address, bytes)) void set_access(Address address, std::size_t bytes,
                                                              const std::vector<int>& peers) override
      CACHALOT_FORWARD(set_access(address, bytes, peers)) ShareableHandle export_handle(MemoryHandle handle) override
      CACHALOT_FORWARD(export_handle(handle)) MemoryHandle import_handle(const ShareableHandle& shared) override
      CACHALOT_FORWARD(import_handle(shared)) void enable_peer_access(int peer) override
      CACHALOT_FORWARD(enable_peer_access(peer)) void* host_malloc(std::size_t bytes) override
      CACHALOT_FORWARD(host_malloc(bytes)) void host_free(void* memory) override
      CACHALOT_FORWARD(host_free(memory)) void copy_to_host(void* to, Address from, std::size_t bytes) override
      CACHALOT_FORWARD(copy_to_host(to, from, bytes)) void copy_from_host(Address to, const void* from,
                                                                          std::size_t bytes) override
      CACHALOT_FORWARD(copy_from_host(to, from, bytes)) void fill(Address address, unsigned char value,
                                                                  std::size_t bytes, Stream stream) override
      CACHALOT_FORWARD(fill(address, value, bytes, stream)) Stream new_stream() override
      CACHALOT_FORWARD(new_stream()) void stream_destroy(Stream stream) override
      CACHALOT_FORWARD(stream_destroy(stream)) Event event_create() override
      CACHALOT_FORWARD(event_create()) void event_destroy(Event event) override
      CACHALOT_FORWARD(event_destroy(event)) void event_record(Event event, Stream stream) override
      CACHALOT_FORWARD(event_record(event, stream)) bool event_query(Event event) override
      CACHALOT_FORWARD(event_query(event)) void event_synchronize(Event event) override
      CACHALOT_FORWARD(event_synchronize(event))
      // Neither is a call that can fail.
      std::optional<std::uint64_t> completion_hint(Stream stream) override {
    return device_->completion_hint(stream);
  }
  std::uint64_t stream_id(Stream stream) override { return device_->stream_id(stream); }
  bool has_stream(Stream stream) override { return device_->has_stream(stream); }
  void copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) override
      CACHALOT_FORWARD(copy(kind, to, from, bytes, stream)) void stream_wait(Stream stream, Event event) override
      CACHALOT_FORWARD(stream_wait(stream, event)) CaptureStatus capture_status(Stream stream) override
      CACHALOT_FORWARD(capture_status(stream)) void synchronize() override CACHALOT_FORWARD(synchronize()) IpcHandle
      ipc_export(Address address) override CACHALOT_FORWARD(ipc_export(address)) Address
      ipc_import(const IpcHandle& handle) override
      CACHALOT_FORWARD(ipc_import(handle)) void ipc_close(Address address) override
      CACHALOT_FORWARD(ipc_close(address)) std::int64_t clock_us() override {
    return device_->clock_us();
  }
#undef CACHALOT_FORWARD

 private:
  std::shared_ptr<Device> device_;
};

}  // namespace cachalot
