#include "simulator/state/simulated_process.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "base/format.h"
#include "cachalot/errors.h"
#include "simulator/base/end_of_process.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator {
namespace {

std::atomic<bool> forked{false};

}  // namespace

std::atomic<Process*> Process::instance{nullptr};

Process* Process::make(cudaError_t& error) {
  static std::mutex making;
  static cudaError_t failure = cudaSuccess;
  error = cudaErrorInitializationError;
  if (forked) return nullptr;
  const std::lock_guard lock(making);
  if (Process* made = instance) return made;
  error = failure;
  if (failure != cudaSuccess) return nullptr;
  try {
    const Config config = read_config();
    if (config.devices == 0) {
      error = failure = cudaErrorNoDevice;
      return nullptr;
    }
    instance = new Process(config);
    pthread_atfork(before_fork, after_fork, [] {
      forked = true;
      instance = nullptr;
      after_fork();
    });
    if (!config.report_path.empty()) write_before_sudden_end(&Process::write_report);
    return instance;
  } catch (const InvalidArgument& mistake) {
    print_error("cachalot simulator: {}\n", mistake.what());
    error = failure = cudaErrorInitializationError;
    return nullptr;
  }
}

Process::Process(const Config& config)
    : config_(config),
      devices_(config_, content_),
      contexts_(config_, devices_),
      captures_(devices_, contexts_, graphs_),
      streams_(config_, watch_, launch_order_, contexts_, devices_, captures_),
      implicit_order_(config_, launch_order_, devices_, contexts_, streams_),
      events_(watch_, launch_order_, devices_, contexts_, captures_, implicit_order_),
      use_checks_(watch_, launch_order_, host_memory_, devices_, implicit_order_),
      copies_(config_, content_, devices_),
      writes_(host_memory_, devices_, captures_, implicit_order_, use_checks_, copies_),
      host_functions_(devices_, launch_order_, captures_, implicit_order_,
                      [this] {
                        know_locked();
                        settle();
                      }),
      allocations_(report_, watch_, host_memory_, devices_, writes_, host_functions_),
      pools_(report_, watch_, devices_, captures_, use_checks_, writes_),
      launches_(config_, host_memory_, devices_, captures_, implicit_order_),
      waits_(config_, launch_order_, devices_, captures_, implicit_order_, host_functions_, pools_),
      virtual_memory_(report_, watch_, content_, devices_, contexts_),
      ipc_(content_, devices_, contexts_, writes_) {
  report_.open(config_.log_path, config_.report_path, config_.physical_devices);
  if (config_.is_strict) watch_.begin(!report_.is_wanted());
  if (config_.is_strict || config_.finds_races) launch_order_.begin();
}

// The child must find no half-written line of the log: it would write it a second time. In a child, which may fork as well,
// there is no instance.
void Process::before_fork() {
  process_mutex.lock();
  if (Process* const process = instance) process->report_.flush_log();
}

void Process::after_fork() { process_mutex.unlock(); }

cudaError_t Process::settle_now() {
  return error_of(watch_, [this] {
    know_locked();
    if (writes_.are_pending()) writes_.do_due();
    if (report_.logs()) write_log();
    return cudaSuccess;
  });
}

CUcontext Process::create_context(DeviceState& device) {
  know_locked();
  Context& context = contexts_.make(device);
  streams_.create_default(context);
  return Contexts::handle(context);
}

void Process::destroy_context(const char* call, CUcontext handle) {
  know_locked();
  Context& context = contexts_.at(call, handle);
  streams_.destroy_all(handle);
  events_.destroy_all(handle);
  contexts_.destroy(context);
}

void Process::reset(DeviceState& device) {
  know_locked();
  captures_.destroy_all(device);
  host_functions_.wait_for_all(device);
  devices_.on_clock(device).synchronize();
  writes_.do_due();
  contexts_.destroy_all(device);
  events_.destroy_all(device);
  streams_.destroy_all(device);
  pools_.destroy_all(device);
  virtual_memory_.unreserve_all(device);
  ipc_.forget_all(device);
  host_memory_.forget_all(device.ordinal);
  watch_.all_gone(device.ordinal);
  device.simulated->reset();
  std::fill(device.peers.begin(), device.peers.end(), false);
  device.flags = 0;
  note_context(device);
  device.forget_context();
  ++device.resets;
}

void Process::note_context(const DeviceState& device) {
  report_.note_context(device.ordinal, device.charge, context_spread(*config_.gpu, device.charge));
}

void Process::thread_ends(std::uint64_t number) {
  Process* process = instance;
  if (!process) return;
  const Lock lock(process_mutex);
  process->streams_.destroy_all(number);
}

void Process::write_report(bool is_final) {
  Process* process = instance;
  if (!process) return;
  const Lock lock(process_mutex);
  if (process->report_.is_written()) return;
  if (!is_final) {
    if (process->report_.is_wanted()) process->report_.write_so_far(process->noted_devices(), process->watch_);
    return;
  }
  process->watch_.tell_what_is_left();
  process->virtual_memory_.sleeping().tell_of_more();
  if (!process->report_.is_wanted()) return;
  const std::vector<const SimulatedDevice*> devices = process->noted_devices();
  std::optional<HostAccess> access;
  if (const DeviceState* accessed = process->devices_.find_owner(fault_address()))
    access = {fault_address(), accessed->ordinal};
  process->report_.write(devices, process->watch_, access);
}

std::vector<const SimulatedDevice*> Process::noted_devices() {
  std::vector<const SimulatedDevice*> devices;
  devices.reserve(static_cast<std::size_t>(devices_.count()));
  for (int ordinal = 0; ordinal < devices_.count(); ++ordinal) {
    const DeviceState& device = devices_.at(ordinal);
    if (device.active || device.resets == 0 || device.charge.lack)  // otherwise what was before the reset was noted
      note_context(device);
    devices.push_back(device.simulated.get());
  }
  return devices;
}

namespace {

// When the library is unloaded, behind the program's own static destructors.
__attribute__((destructor)) void at_exit() { Process::write_report(/*is_final=*/true); }

}  // namespace

void Process::write_log() {
  for (int ordinal = 0; ordinal < devices_.count(); ++ordinal)
    report_.log(ordinal, devices_.at(ordinal).simulated->take_log());
}

}  // namespace cachalot::simulator
