#include "device/cuda_codes.h"

CACHALOT_BEGIN

const char* cuda_code_name(int code) {
  switch (static_cast<CudaCode>(code)) {
#define CODE(name, number, driver_name) \
  case CudaCode::name:                  \
    return #driver_name;
#include "device/cuda_codes.inc"
#undef CODE
  }
  return "an injected error";
}

CACHALOT_END
