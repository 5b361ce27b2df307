#include "pytorch/host_plug.h"

#include "pytorch/host_memory.h"

cachalot::HostPlug* cachalot_host_plug(int version) {
  return version == cachalot::kHostPlugVersion ? &cachalot::HostMemory::instance() : nullptr;
}
