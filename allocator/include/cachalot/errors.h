/// @file
/// The exceptions of the library.
///
/// Four exceptions are the library's own: InvalidArgument, OutOfMemory, CudaError and the CudaError
/// DeviceReset. Three other kinds of exceptions leave it:
/// - std::bad_alloc that is not an OutOfMemory: the host has no memory left. OutOfMemory derives
///   from std::bad_alloc, so catch OutOfMemory first.
/// - An exception thrown by the program's own code that the library calls: guard handlers
///   (guard.h), observers, callbacks and context recorders, segment providers, Device
///   implementations.
/// - HazardError, from a SimulatedDevice that checks hazards (simulated_device.h).
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

/// The C++ interface of cachalot.
CACHALOT_BEGIN_API

/// An InvalidArgument reports a mistake of the caller. Its message names the value and the rule.
/// The state is as it was before the call.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An OutOfMemory reports that the device, or the limit set on it, does not have enough memory
/// after all memory that can be given back was given back. Its message says what holds the memory.
class OutOfMemory : public std::bad_alloc {
 public:
  /// Makes the exception for a request of `requested_bytes` on `device`.
  OutOfMemory(std::string message, int device, std::size_t requested_bytes)
      : message_(std::make_shared<const std::string>(std::move(message))),
        device_(device),
        requested_bytes_(requested_bytes) {}
  /// Returns the message; valid as long as the exception or a copy of it exists.
  const char* what() const noexcept override { return message_->c_str(); }
  /// Returns the index of the device.
  int device() const noexcept { return device_; }
  /// Returns the number of bytes that the caller asked for.
  std::size_t requested_bytes() const noexcept { return requested_bytes_; }

 private:
  std::shared_ptr<const std::string>
      message_;  // shared, so that copying the exception cannot throw
  int device_;
  std::size_t requested_bytes_;
};

/// A CudaError reports that a CUDA call failed for another reason than a lack of memory.
class CudaError : public std::runtime_error {
 public:
  /// Makes the exception for `call`, a function of the CUDA driver as in "cuMemAlloc". `code` is
  /// its CUresult, which cudaError_t shares for the same failure; `name` is the text of the code.
  CudaError(const std::string& call, int code, const std::string& name)
      : std::runtime_error("CUDA error in " + call + ": " + name + " (code " +
                           std::to_string(code) + ")"),
        call_(std::make_shared<const std::string>(call)),
        code_(code) {}
  /// Returns the name of the CUDA call that failed.
  const std::string& call() const noexcept { return *call_; }
  /// Returns the CUresult.
  int code() const noexcept { return code_; }

 private:
  std::shared_ptr<const std::string> call_;
  int code_;
};

/// A DeviceReset reports that the program reset the device (cudaDeviceReset) after the allocator
/// began to use it. All memory, streams and events of the device are gone. Make a new allocator.
///
/// A new number of the device's primary context (cuCtxGetId) shows the reset. The code is 709
/// (CUDA_ERROR_CONTEXT_IS_DESTROYED). CUDA also gives that code for a stream that was destroyed,
/// which is a CudaError, and no DeviceReset.
class DeviceReset : public CudaError {
 public:
  /// Makes the exception for device `device`.
  explicit DeviceReset(int device)
      : CudaError("cuCtxGetId", 709,
                  "device " + std::to_string(device) +
                      " was reset (cudaDeviceReset) since its allocator began to use it: all its "
                      "memory, streams and events are gone; make a new allocator") {}
};

CACHALOT_END_API
