// Lets the calling thread allocate, for a scope, while some stream captures: the memory is the caller's business, not the
// graph's.
#pragma once

#include "device/cuda_driver.h"

CACHALOT_BEGIN

class RelaxedCapture {
 public:
  RelaxedCapture() { check("cuThreadExchangeStreamCaptureMode", driver().exchange_capture_mode(&mode_)); }
  ~RelaxedCapture() { driver().exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CACHALOT_END
