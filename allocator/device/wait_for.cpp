#include "device/wait_for.h"

#include "cachalot/errors.h"

namespace cachalot {

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

}  // namespace cachalot
