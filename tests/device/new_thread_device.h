// A device each of whose calls is made by a thread that was started for it, and has never called CUDA before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cachalot/device.h"

namespace cachalot {

// Makes the call on a new thread; throws its exception.
template <typename Call>
auto in_new_thread(Call&& call) {
  return std::async(std::launch::async, call).get();
}

class NewThreadDevice final : public Device {
 public:
  explicit NewThreadDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  int index() const override { return device_->index(); }
  DeviceProperties properties() const override {
    return in_new_thread([&] { return device_->properties(); });
  }
  MemoryInfo memory_info() override {
    return in_new_thread([&] { return device_->memory_info(); });
  }
  std::optional<Address> malloc(std::size_t bytes) override {
    return in_new_thread([&] { return device_->malloc(bytes); });
  }
  std::optional<Address> malloc_managed(std::size_t bytes) override {
    return in_new_thread([&] { return device_->malloc_managed(bytes); });
  }
  void free(Address address) override {
    in_new_thread([&] { device_->free(address); });
  }
  std::optional<Address> reserve(std::size_t bytes) override {
    return in_new_thread([&] { return device_->reserve(bytes); });
  }
  void unreserve(Address address, std::size_t bytes) override {
    in_new_thread([&] { device_->unreserve(address, bytes); });
  }
  std::optional<MemoryHandle> create(std::size_t bytes) override {
    return in_new_thread([&] { return device_->create(bytes); });
  }
  void release(MemoryHandle handle) override {
    in_new_thread([&] { device_->release(handle); });
  }
  void map(Address address, std::size_t bytes, MemoryHandle handle) override {
    in_new_thread([&] { device_->map(address, bytes, handle); });
  }
  void unmap(Address address, std::size_t bytes) override {
    in_new_thread([&] { device_->unmap(address, bytes); });
  }
  void set_access(Address address, std::size_t bytes, const std::vector<int>& peers) override {
    in_new_thread([&] { device_->set_access(address, bytes, peers); });
  }
  ShareableHandle export_handle(MemoryHandle handle) override {
    return in_new_thread([&] { return device_->export_handle(handle); });
  }
  MemoryHandle import_handle(const ShareableHandle& shared) override {
    return in_new_thread([&] { return device_->import_handle(shared); });
  }
  void enable_peer_access(int peer) override {
    in_new_thread([&] { device_->enable_peer_access(peer); });
  }
  void* host_malloc(std::size_t bytes) override {
    return in_new_thread([&] { return device_->host_malloc(bytes); });
  }
  void host_free(void* memory) override {
    in_new_thread([&] { device_->host_free(memory); });
  }
  void copy_to_host(void* to, Address from, std::size_t bytes) override {
    in_new_thread([&] { device_->copy_to_host(to, from, bytes); });
  }
  void copy_from_host(Address to, const void* from, std::size_t bytes) override {
    in_new_thread([&] { device_->copy_from_host(to, from, bytes); });
  }
  void copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) override {
    in_new_thread([&] { device_->copy(kind, to, from, bytes, stream); });
  }
  bool has_stream(Stream stream) override {
    return in_new_thread([&] { return device_->has_stream(stream); });
  }
  void fill(Address address, unsigned char value, std::size_t bytes, Stream stream) override {
    in_new_thread([&] { device_->fill(address, value, bytes, stream); });
  }
  std::uint64_t stream_id(Stream stream) override {
    return in_new_thread([&] { return device_->stream_id(stream); });
  }
  Stream new_stream() override {
    return in_new_thread([&] { return device_->new_stream(); });
  }
  void stream_destroy(Stream stream) override {
    in_new_thread([&] { device_->stream_destroy(stream); });
  }
  Event event_create() override {
    return in_new_thread([&] { return device_->event_create(); });
  }
  void event_destroy(Event event) override {
    in_new_thread([&] { device_->event_destroy(event); });
  }
  void event_record(Event event, Stream stream) override {
    in_new_thread([&] { device_->event_record(event, stream); });
  }
  bool event_query(Event event) override {
    return in_new_thread([&] { return device_->event_query(event); });
  }
  void event_synchronize(Event event) override {
    in_new_thread([&] { device_->event_synchronize(event); });
  }
  std::optional<std::uint64_t> completion_hint(Stream stream) override {
    return in_new_thread([&] { return device_->completion_hint(stream); });
  }
  void stream_wait(Stream stream, Event event) override {
    in_new_thread([&] { device_->stream_wait(stream, event); });
  }
  CaptureStatus capture_status(Stream stream) override {
    return in_new_thread([&] { return device_->capture_status(stream); });
  }
  void synchronize() override {
    in_new_thread([&] { device_->synchronize(); });
  }
  IpcHandle ipc_export(Address address) override {
    return in_new_thread([&] { return device_->ipc_export(address); });
  }
  Address ipc_import(const IpcHandle& handle) override {
    return in_new_thread([&] { return device_->ipc_import(handle); });
  }
  void ipc_close(Address address) override {
    in_new_thread([&] { device_->ipc_close(address); });
  }
  std::int64_t clock_us() override { return device_->clock_us(); }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace cachalot
