#include "device/wait_for.h"

#include "device/cuda_codes.h"

#include "cachalot/errors.h"

CACHALOT_BEGIN

void wait_for(Device& device, Stream stream) {
  const Event event = device.event_create();
  try {
    device.event_record(event, stream);
    device.event_synchronize(event);
  } catch (...) {
    try {
      device.event_destroy(event);
    } catch (const CudaError&) {  // the first error is the one to tell
    }
    throw;
  }
  device.event_destroy(event);
}

void wait_in_place_of_stream(Device& device, const CudaError& error) {
  if (!tells_of_dead_stream(error)) throw;
  try {
    device.synchronize();
  } catch (const CudaError& of_device) {  // after a reset, drivers from before CUDA 12 give this code to every call
    if (of_device.code() == static_cast<int>(CudaCode::context_is_destroyed)) throw DeviceReset(device.index());
    throw;
  }
}

CACHALOT_END
