#include "pytorch/plug/process_allocator.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/own_code.h"
#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "diagnostics/process_publisher.h"
#include "policy/option_grammar.h"
#include "policy/options_without_effect.h"
#include "pytorch/plug/garbage.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {

namespace {

// Calls use(value). Returns false if the variable is not set.
template <typename Use>
bool with_environment(const char* variable, Use use) {
  if (!environment(variable)) return false;
  parse_environment(variable, "", use);
  return true;
}

// Amends the options. Settings of PYTORCH_CUDA_ALLOC_CONF that cachalot does not use may be used by PyTorch itself;
// `text` has no other reader.
Options amended(const Options& options, std::string_view text) {
  Options result = amend_options(text, options);
  warn_of_options_without_effect(result, options);
  return result;
}

Options amended_by_environment(Options options) {
  with_environment("CACHALOT_DEBUG", [&](std::string_view text) { options.debug = parse_debug(text); });
  with_environment("CACHALOT_CONF", [&](std::string_view text) { options = amended(options, text); });
  return options;
}

// parse_pytorch_conf's options; each warning is a line on stderr.
Options read_pytorch_conf(std::string_view text, const Options& base) {
  PytorchConf conf = parse_pytorch_conf(text, base);
  for (const std::string& warning : conf.warnings) print_error("cachalot: {}\n", warning);
  return conf.options;
}

// Reads the variable as torch does: "0" and anything else leave caching on.
bool is_caching_off_by_environment() { return environment("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"; }

// The first of the two that is set counts, as in PyTorch.
Options pytorch_environment_options() {
  Options options;
  const auto read = [&](std::string_view text) { options = read_pytorch_conf(text, {}); };
  if (!with_environment("PYTORCH_CUDA_ALLOC_CONF", read)) with_environment("PYTORCH_ALLOC_CONF", read);
  return options;
}

}  // namespace

Process& Process::instance() {
  static Process& process = *new Process;
  return process;
}

// PyTorch's streams live as long as the process.
Options Process::amended_by_all(Options base, std::string_view amendment) const {
  base.immortal_streams = !streams_end_;
  Options options = amended(amended_by_environment(base), amendment);
  for (const std::string& text : configured_) options = amended(options, text);
  return options;
}

void Process::expect_other_libraries() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (made() == nullptr) streams_end_ = true;
}

void Process::set_base(const Options& base, std::optional<bool> expandable) {
  const std::lock_guard<std::mutex> lock(mutex_);
  take_base(base, expandable);
}

void Process::set_base(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Options base = read_pytorch_conf(text, base_);
  const bool is_named = without_spaces(text).find("expandable_segments:") != std::string::npos;
  take_base(base, is_named ? std::optional(base.expandable_segments) : std::nullopt);
}

void Process::take_base(Options base, std::optional<bool> expandable) {
  CachingAllocator* const allocator = made();
  const bool has_pages = allocator != nullptr && uses_pages(allocator->options());
  if (allocator != nullptr && !has_pages && uses_pages(amended_by_all(base, amendment_))) {
    tell_of_heap();
    base.expandable_segments = false;
  }
  const std::optional<bool> was_plain = is_plain_;
  const bool is_switch =
      has_pages || (allocator == nullptr && base_given_);  // the first settings are the environment's
  if (is_switch && expandable) is_plain_ = !*expandable;
  try {
    const Options options = keeping_heap(amended_by_all(base, amendment_));
    if (allocator != nullptr) allocator->configure(options);
  } catch (...) {
    is_plain_ = was_plain;
    throw;
  }
  base_ = std::move(base);
  base_given_ = true;
}

void Process::tell_of_heap() {
  if (!std::exchange(told_of_heap_, true)) {
    print_error(
        "cachalot: 'expandable_segments:True' is ignored: the heap is 'segments' since the first use of memory and "
        "cannot change; PYTORCH_CUDA_ALLOC_CONF or CACHALOT_CONF chooses it\n");
  }
}

// Returns the options that the allocator is made with.
Options Process::first_options() const {
  Options options = amended_by_all(base_given_ ? base_ : pytorch_environment_options(), amendment_);
  if (uses_pages(options)) options.plain = is_plain_.value_or(options.plain);
  return options;
}

// The page heap stays the heap, whatever became of the source that chose it, and its new memory is of the kind that a
// switch asked for last.
Options Process::keeping_heap(Options options) const {
  const CachingAllocator* const allocator = made();
  if (allocator == nullptr || !uses_pages(allocator->options())) return options;
  options.heap = HeapKind::pages;
  options.plain = is_plain_.value_or(options.plain);
  return options;
}

void Process::amend(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Options options = keeping_heap(amended_by_all(base_, text));
  CachingAllocator* const allocator = made();
  if (allocator != nullptr) allocator->configure(options);
  if (allocator == nullptr) is_plain_.reset();  // settings from before this heap was chosen switch nothing
  amendment_ = text;
}

void Process::configure(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Options options = amended(keeping_heap(amended_by_all(base_, amendment_)), text);
  if (CachingAllocator* const allocator = made()) allocator->configure(options);
  if (made() != nullptr) is_plain_ = options.plain;
  configured_.emplace_back(text);
}

CachingAllocator& Process::make() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (CachingAllocator* const allocator = made()) return *allocator;
  // An adapter, if there is one, came first with torch's own reading of the variables.
  if (!base_given_) base_ = pytorch_environment_options();
  std::vector<std::shared_ptr<Device>> devices = cuda_devices();
  CACHALOT_REQUIRE(!devices.empty(), "cachalot found {} CUDA devices: it needs a GPU and its driver", devices.size());
  const bool publishes = is_publishing_asked_for();
  auto allocator = std::make_unique<CachingAllocator>(std::move(devices), first_options(), guard_factory(kernels_for));
  if (is_caching_off_by_environment()) allocator->set_caching_enabled(false);
  add_own_code(reinterpret_cast<const void*>(&amended_by_environment));
  provide_python_frames();
  tell_of_out_of_memory(*allocator);
  allocator->add_last_resort([&made = *allocator] { return collect_python_garbage(made); });
  base_given_ = true;
  watch_ = std::make_unique<MemoryWatch>(*allocator).release();
  made_allocator.store(allocator.get(), std::memory_order_release);
  if (publishes) publish_as_asked(*allocator);
  return *allocator.release();
}

Options Process::options_now() {
  if (const CachingAllocator* const allocator = made()) return allocator->options();
  const std::lock_guard<std::mutex> lock(mutex_);
  return first_options();
}

bool Process::has_pages() { return uses_pages(options_now()); }
bool Process::takes_pages() { return cachalot::takes_pages(options_now()); }

std::size_t Process::pinned_limit() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return first_options().pinned_limit;
}

void Process::set_caching_enabled(bool enabled) {
  if (!is_caching_off_by_environment()) process_allocator().set_caching_enabled(enabled);
}

unsigned Process::place(unsigned flags) {
  options_of_flags(flags);  // refuses an unknown one
  placing_threads_ += static_cast<int>(flags != 0) - static_cast<int>(flags_here_ != 0);
  return std::exchange(flags_here_, flags);
}

void* Process::allocate_placed(std::size_t bytes, int device, Stream stream) {
  return process_allocator().allocate(bytes, device, stream, options_of_flags(flags_here_));
}

void Process::throw_out_of_memory(const char* message) const {
  if (const Plug::Thrower thrower = thrower_.load()) thrower(message);
  throw std::runtime_error(message);
}

CachingAllocator& make_allocator() { return Process::instance().make(); }

void configure_allocator(std::string_view options) { Process::instance().configure(options); }

}  // namespace cachalot
