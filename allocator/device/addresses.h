// Addresses of device memory, and the pointers by which users know them.
#pragma once

#include "cachalot/device.h"

CACHALOT_BEGIN

inline Address as_address(const void* ptr) { return reinterpret_cast<Address>(ptr); }
inline void* as_pointer(Address address) { return reinterpret_cast<void*>(address); }

CACHALOT_END
