// The driver's functions about copies between devices, copies and fills of rows, and copies in batches.
#include "simulator/calls.h"
#include "simulator/report.h"

using namespace cachalot::simulator;

namespace {

// One side of a copy of rows.
struct Side {
  char* start = nullptr;
  std::size_t pitch = 0;
};

// False for an array.
bool find_side(Side& side, CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x, std::size_t y,
               std::size_t pitch) {
  if (type == CU_MEMORYTYPE_ARRAY) return false;
  const void* base = type == CU_MEMORYTYPE_HOST ? host : pointer(device);
  side = {const_cast<char*>(static_cast<const char*>(base)) + y * pitch + x, pitch};
  return true;
}

CUresult copy_rows(const CUDA_MEMCPY2D& copy, CUstream stream) {
  Side from;
  Side to;
  if (!find_side(from, copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcPitch) ||
      !find_side(to, copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstPitch)) {
    note_not_simulated("cuMemcpy2D of an array");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto pitch = [&](const Side& side) { return side.pitch == 0 ? copy.WidthInBytes : side.pitch; };
  return by_runtime_in_context("cuMemcpy2D", cudaMemcpy2DAsync, to.start, pitch(to), from.start, pitch(from),
                               copy.WidthInBytes, copy.Height, cudaMemcpyDefault, stream);
}

CUresult copy_rows_and_wait(const CUDA_MEMCPY2D& copy) {
  const CUresult error = copy_rows(copy, cudaStreamLegacy);
  return error == CUDA_SUCCESS ? by_runtime(cudaStreamSynchronize, cudaStreamLegacy) : error;
}

CUresult fill_rows(CUdeviceptr to, std::size_t pitch, std::uint64_t pattern, std::size_t pattern_bytes,
                   std::size_t width, std::size_t height, CUstream handle) {
  return call_in_context("cuMemsetD2D", [&](Process& process) {
    const std::size_t row_bytes = width * pattern_bytes;
    if (height > 1 && row_bytes > pitch) return cudaErrorInvalidValue;
    StreamState& stream = process.streams().at("cuMemsetD2D", handle);
    process.launches().launch(stream, cudaGraphNodeTypeMemset);
    for (std::size_t row = 0; row < height; ++row) {
      void* const start = pointer(to + row * pitch);
      if (process.captures().record_write(stream, start, row_bytes)) continue;
      process.copies().fill(start, pattern, pattern_bytes, row_bytes, row_bytes * height);
    }
    return cudaSuccess;
  });
}

// Returns the device of a context, null being the current one; -1, which is no device, where there is none.
int device_of(CUcontext context) {
  CUdevice device = -1;
  return cuCtxGetDevice_v2(&device, context) == CUDA_SUCCESS ? device : -1;
}

}  // namespace

extern "C" {

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
  return by_runtime_in_context(__func__, cudaMemcpyPeerAsync, pointer(to), device_of(to_context), pointer(from),
                               device_of(from_context), bytes, stream);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return by_runtime_in_context(__func__, cudaMemcpyPeer, pointer(to), device_of(to_context), pointer(from),
                               device_of(from_context), bytes);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) { return copy_rows(*copy, stream); }
CUresult cuMemcpy2D(const CUDA_MEMCPY2D* copy) { return copy_rows_and_wait(*copy); }
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* copy) { return copy_rows_and_wait(*copy); }

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first_copies, size_t attributes_count,
                            CUstream stream) {
  return by_runtime(cudaMemcpyBatchAsync, reinterpret_cast<void**>(to), reinterpret_cast<void**>(from), sizes, count,
                    reinterpret_cast<cudaMemcpyAttributes*>(attributes), first_copies, attributes_count, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, stream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, stream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
                            CUstream stream) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, stream);
}
CUresult cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, cudaStreamLegacy);
}
CUresult cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, cudaStreamLegacy);
}
CUresult cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, cudaStreamLegacy);
}

// Managed memory is the host's already: nothing moves.
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned int flags, CUstream stream) {
  return by_runtime(cudaMemPrefetchAsync, pointer(address), bytes, {}, flags, stream);
}
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation) {
  return by_runtime(cudaMemAdvise, pointer(address), bytes, static_cast<cudaMemoryAdvise>(advice), {});
}

}  // extern "C"
