// What cachalot.memory_report asks of the process's allocator, by ctypes. What codes and texts mean: hooks.h.
#pragma once

#include "pytorch/export.h"

extern "C" {

// JSON of a list with an object for each pool of each device: "device", "first" and "second" (the pool's id), "tag" (empty: it is none's),
// and in bytes what it holds of the device: "live", "waiting" (freed, and other streams may still use it) and "cached"; and
// "asleep", which it does not hold until restore_physical. An empty list if no memory was used: the allocator is then not made,
// and the device not touched. Returns as cachalot_plug_json. Thread-safe.
CACHALOT_EXPORT long cachalot_plug_pool_memory(char* text, long capacity);
}
