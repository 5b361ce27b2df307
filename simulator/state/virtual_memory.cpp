#include "simulator/state/virtual_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"
#include "simulator/base/thread_state.h"
#include "simulator/device/address_space.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator {
namespace {

bool is_of_kind(const CUmemAllocationProp& properties, int kind) {
  return (static_cast<int>(properties.requestedHandleTypes) & kind) != 0;
}

cudaError_t first_of(std::initializer_list<int> errors) {
  for (const int error : errors) {
    if (error != 0) return static_cast<cudaError_t>(error);
  }
  return cudaSuccess;
}

}  // namespace

const cachalot_sim_handles& HandleRules::of(int device) const {
  static constexpr cachalot_sim_handles kNone{};
  const auto at = rules_.find(device);
  return at == rules_.end() ? kNone : at->second;
}

std::optional<int> HandleRules::attribute(int device, int attribute) const {
  const cachalot_sim_handles& rules = of(device);
  if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) return rules.claims_fabric;
  if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) return rules.claims_rdma;
  return std::nullopt;
}

cudaError_t HandleRules::granularity_error(const CUmemAllocationProp& properties) const {
  const cachalot_sim_handles& rules = of(properties.location.id);
  const bool unknown = is_of_kind(properties, CU_MEM_HANDLE_TYPE_FABRIC) && rules.claims_fabric == 0;
  return first_of({rules.granularity_error, unknown ? cudaErrorNotSupported : 0});
}

cudaError_t HandleRules::create_error(const CUmemAllocationProp& properties) const {
  const cachalot_sim_handles& rules = of(properties.location.id);
  const bool by_fabric = is_of_kind(properties, CU_MEM_HANDLE_TYPE_FABRIC);
  const bool by_file = is_of_kind(properties, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return first_of({by_fabric && rules.claims_fabric == 0 ? cudaErrorNotSupported : 0,
                   by_fabric ? rules.create_fabric_error : 0, by_file ? rules.create_file_error : 0,
                   properties.allocFlags.gpuDirectRDMACapable != 0 ? rules.create_rdma_error : 0});
}

cudaError_t HandleRules::access_error(int device, CUmemGenericAllocationHandle handle) const {
  const CUmemAllocationProp* const made = properties(handle);
  const bool for_rdma = made != nullptr && made->allocFlags.gpuDirectRDMACapable != 0;
  return first_of({for_rdma ? of(device).access_rdma_error : 0});
}

cudaError_t HandleRules::export_error(int device, CUmemAllocationHandleType kind) const {
  return first_of({kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? of(device).export_file_error : 0});
}

void HandleRules::made(CUmemGenericAllocationHandle handle, const CUmemAllocationProp& properties) {
  if (is_of_kind(properties, CU_MEM_HANDLE_TYPE_FABRIC) || properties.allocFlags.gpuDirectRDMACapable != 0) {
    made_[handle] = properties;
  }
}

const CUmemAllocationProp* HandleRules::properties(CUmemGenericAllocationHandle handle) const {
  const auto at = made_.find(handle);
  return at == made_.end() ? nullptr : &at->second;
}

// The first range that ends behind the address.
std::map<Address, SleepingMemory::Asleep>::iterator SleepingMemory::first_behind(Address address) {
  auto at = asleep_.upper_bound(address);
  if (at != asleep_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > address) --at;
  return at;
}

void SleepingMemory::add(const AddressRange& range) {
  remove(range);
  asleep_[range.address] = {range.bytes, watch_.is_on() ? CallStack::capture() : CallStack()};
}

void SleepingMemory::remove(const AddressRange& range) {
  const Address end = range.address + range.bytes;
  for (auto at = first_behind(range.address); at != asleep_.end() && at->first < end;) {
    const Address begin = at->first;
    const Asleep old = at->second;
    at = asleep_.erase(at);
    if (begin < range.address) asleep_[begin] = {range.address - begin, old.stack};
    if (begin + old.bytes > end) asleep_[end] = {begin + old.bytes - end, old.stack};
  }
}

void SleepingMemory::require_awake(const char* call, const void* start, std::size_t bytes) {
  if (asleep_.empty() || bytes == 0) return;
  const auto address = reinterpret_cast<Address>(start);
  const auto at = first_behind(address);
  if (at == asleep_.end() || at->first >= address + bytes) return;
  const std::string line = line_in_python();
  const std::string user = line.empty() ? call : formatted("{} at {}", call, line);
  const std::string text = formatted(
      "{} uses [{:#x}, +{}), but [{:#x}, +{}) is asleep, or was freed: cuMemUnmap took its memory, and only its "
      "addresses are left. Wake it first (restore_physical)",
      user, address, bytes, at->first, at->second.bytes);
  const auto [told, is_first] = told_.try_emplace(user, text);
  if (!is_first) ++more_;
  if (watch_.is_on())
    watch_.note(told->second, at->second.stack);
  else
    note_once(told->second);
  throw CudaError(formatted("{} of memory that is asleep", call), static_cast<int>(CudaCode::invalid_value), text);
}

void SleepingMemory::tell_of_more() const {
  if (more_ == 0 || watch_.is_on()) return;
  note_once(formatted("and {} more use{} of memory that is asleep, by the same calls", more_, more_ == 1 ? "" : "s"));
}

namespace {

constexpr int kHandleDeviceShift = 48;

struct HandleParts {
  int device;
  MemoryHandle handle;
};

HandleParts split(CUmemGenericAllocationHandle handle) {
  return {static_cast<int>(handle >> kHandleDeviceShift) - 1, handle & ((std::uint64_t{1} << kHandleDeviceShift) - 1)};
}

CUmemGenericAllocationHandle join(int device, MemoryHandle handle) {
  return static_cast<std::uint64_t>(device + 1) << kHandleDeviceShift | handle;
}

const void* pointer_of(CUmemGenericAllocationHandle handle) { return reinterpret_cast<const void*>(handle); }

// The content of a shared descriptor: a file without a name, in which the exporter has written the place of its memory.
struct Ticket {
  char magic[16];
  CUmemGenericAllocationHandle handle;
  std::size_t bytes;
  ContentStore::Window window;
};
constexpr char kMagic[16] = "cachalot memory";

}  // namespace

int VirtualMemory::device_of(CUmemGenericAllocationHandle handle) { return split(handle).device; }

Address VirtualMemory::reserve(std::size_t bytes, std::size_t alignment) {
  DeviceState& device = devices_.at(this_thread().device);
  const std::size_t more_bytes = alignment > kPhysicalUnit ? alignment - kPhysicalUnit : 0;
  if (bytes > SIZE_MAX - more_bytes) return 0;
  const auto start = devices_.on_clock(device).reserve(bytes + more_bytes);
  if (!start) return 0;
  const Address address = more_bytes == 0 ? *start : round_up(*start, alignment);
  reservations_[address] = {device.ordinal, bytes, {*start, bytes + more_bytes}};
  return address;
}

void VirtualMemory::unreserve(Address address, std::size_t bytes) {
  const auto at = reservations_.find(address);
  if (at == reservations_.end() || at->second.bytes != bytes)
    fail("cuMemAddressFree", CudaCode::invalid_value, "not a reserved range");
  const Reservation& reserved = at->second;
  devices_.on_clock(reserved.device).unreserve(reserved.whole.address, reserved.whole.bytes);
  sleeping_.remove({address, bytes});
  reservations_.erase(at);
}

void VirtualMemory::unreserve_all(const DeviceState& device) {
  std::erase_if(reservations_, [&](const auto& entry) CACHALOT_LOCKED {
    if (entry.second.device != device.ordinal) return false;
    sleeping_.remove({entry.first, entry.second.bytes});
    return true;
  });
}

CUmemGenericAllocationHandle VirtualMemory::create(DeviceState& device, std::size_t bytes) {
  const auto handle = devices_.on_clock(device).create(bytes);
  if (report_.is_wanted()) report_.note_allocation(*device.simulated, "cuMemCreate", bytes, handle.has_value());
  if (!handle) return 0;
  const CUmemGenericAllocationHandle made = join(device.ordinal, *handle);
  watch_.made(Owned::physical_memory, pointer_of(made), device.ordinal, bytes);
  return made;
}

void VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  const auto [device, on_device] = split(handle);
  devices_.on_clock(device).release(on_device);
  watch_.gone(Owned::physical_memory, pointer_of(handle));
}

CUmemGenericAllocationHandle VirtualMemory::retain_at(Address address) {
  constexpr auto kCall = "cuMemRetainAllocationHandle";
  DeviceState& device = devices_.owner(kCall, address);
  const MemoryHandle handle = device.simulated->memory_at(address)->handle;
  if (handle == 0) fail(kCall, CudaCode::invalid_value, "no memory of cuMemCreate is mapped there");
  device.simulated->retain(handle);
  return join(device.ordinal, handle);
}

CUmemGenericAllocationHandle VirtualMemory::mapped_at(Address address) {
  const DeviceState* const device = devices_.find_owner(address);
  const auto memory = device != nullptr ? device->simulated->memory_at(address) : std::nullopt;
  return memory && memory->handle != 0 ? join(device->ordinal, memory->handle) : 0;
}

int VirtualMemory::export_handle(CUmemGenericAllocationHandle handle) {
  constexpr auto kCall = "cuMemExportToShareableHandle";
  const auto [device, on_device] = split(handle);
  const HandleInfo memory = devices_.on_clock(device).handle_info(on_device);
  Ticket ticket{{}, handle, memory.bytes, content_.window({device, memory.physical})};
  std::memcpy(ticket.magic, kMagic, sizeof(kMagic));
  const int descriptor = content_.descriptor_with(&ticket, sizeof(ticket));
  if (descriptor < 0) fail(kCall, CudaCode::unknown, "no file descriptor to share it by");
  return descriptor;
}

CUmemGenericAllocationHandle VirtualMemory::import_handle(int descriptor) {
  constexpr auto kCall = "cuMemImportFromShareableHandle";
  Ticket ticket{};
  const off_t at = lseek(descriptor, 0, SEEK_CUR);
  const bool read = at >= 0 && pread(descriptor, &ticket, sizeof(ticket), at) == sizeof(ticket);
  if (!read || std::memcmp(ticket.magic, kMagic, sizeof(kMagic)) != 0)
    fail(kCall, CudaCode::invalid_value, "not a descriptor that cuMemExportToShareableHandle made");
  if (ticket.window.process == getpid()) {
    const auto [device, on_device] = split(ticket.handle);
    devices_.on_clock(device).retain(on_device);
    return ticket.handle;
  }
  DeviceState& device = contexts_.current();
  const MemoryHandle adopted = devices_.on_clock(device).adopt(ticket.bytes);
  if (!content_.attach({device.ordinal, device.simulated->handle_info(adopted).physical}, ticket.bytes, ticket.window,
                       descriptor)) {
    device.simulated->release(adopted);
    fail(kCall, CudaCode::invalid_value, "the process that shares it is gone");
  }
  return join(device.ordinal, adopted);
}

void VirtualMemory::map(Address address, std::size_t bytes, CUmemGenericAllocationHandle handle) {
  const auto [device, on_device] = split(handle);
  devices_.on_clock(device).map(address, bytes, on_device);
  sleeping_.remove({address, bytes});
}

}  // namespace cachalot::simulator

int cachalot_sim_set_handles(int device, const cachalot_sim_handles* rules) {
  using namespace cachalot::simulator;
  return guarded([&](Process& process) {
    if (rules == nullptr) return cudaErrorInvalidValue;
    process.virtual_memory().rules().set(process.devices().at(device).ordinal, *rules);
    return cudaSuccess;
  });
}
