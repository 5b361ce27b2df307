// The driver's log of errors. PyTorch registers a callback around its calls. The simulated driver tells what is wrong where it
// goes wrong (notes.h) and logs nothing, so callbacks are registered and never called.
#include <algorithm>
#include <vector>

#include "simulator/calls.h"

using namespace cachalot::simulator;

namespace {

struct LogCallback {
  CUlogsCallback function;
  void* data;
};

// Under process_mutex. A handle is the entry's address. Never destroyed: a program may end them late.
std::vector<LogCallback*>& log_callbacks() {
  static auto& callbacks = *new std::vector<LogCallback*>;
  return callbacks;
}

}  // namespace

extern "C" {

CUresult cuLogsRegisterCallback(CUlogsCallback callback, void* data, CUlogsCallbackHandle* handle) {
  return driver_call([&](Process&) {
    if (callback == nullptr) return cudaErrorInvalidValue;
    auto* const entry = new LogCallback{callback, data};
    log_callbacks().push_back(entry);
    if (handle != nullptr) *handle = reinterpret_cast<CUlogsCallbackHandle>(entry);
    return cudaSuccess;
  });
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  return driver_call([&](Process&) {
    std::vector<LogCallback*>& callbacks = log_callbacks();
    const auto found = std::find(callbacks.begin(), callbacks.end(), reinterpret_cast<LogCallback*>(handle));
    if (found == callbacks.end()) return cudaErrorInvalidValue;
    delete *found;
    callbacks.erase(found);
    return cudaSuccess;
  });
}

}  // extern "C"
