// What the library throws. Nothing else leaves it.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace cachalot {

// The caller's mistake: the message names the value and the rule. State is as it was before the call.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The device (or the limit set on it) has not enough memory, after everything that could be given back was.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(std::string message, int device, std::size_t requested_bytes)
      : message_(std::make_shared<const std::string>(std::move(message))),
        device_(device),
        requested_bytes_(requested_bytes) {}
  const char* what() const noexcept override { return message_->c_str(); }
  int device() const noexcept { return device_; }
  std::size_t requested_bytes() const noexcept { return requested_bytes_; }

 private:
  std::shared_ptr<const std::string> message_;  // shared, so that copying the exception cannot throw
  int device_;
  std::size_t requested_bytes_;
};

// A CUDA call failed with something other than out of memory; reported as itself.
class CudaError : public std::runtime_error {
 public:
  // `code` is the cudaError_t (runtime calls) or CUresult (driver calls) as a number; `name` its text.
  CudaError(const std::string& call, int code, const std::string& name)
      : std::runtime_error("CUDA error in " + call + ": " + name + " (code " + std::to_string(code) + ")"),
        call_(std::make_shared<const std::string>(call)),
        code_(code) {}
  const std::string& call() const noexcept { return *call_; }
  int code() const noexcept { return code_; }

 private:
  std::shared_ptr<const std::string> call_;
  int code_;
};

}  // namespace cachalot
