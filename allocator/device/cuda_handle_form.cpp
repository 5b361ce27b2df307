#include "device/cuda_handle_form.h"

#include <vector>

#include "cachalot/errors.h"

CACHALOT_BEGIN

namespace {

// The forms that a device may have that claims `most`, the most capable first.
std::vector<HandleForm> forms_up_to(HandleForm most) {
  std::vector<HandleForm> forms;
  const int without_fabric = most.kinds & ~CU_MEM_HANDLE_TYPE_FABRIC;
  int before = -1;
  for (const int kinds : {most.kinds, without_fabric, static_cast<int>(CU_MEM_HANDLE_TYPE_NONE)}) {
    if (kinds == before) continue;
    before = kinds;
    forms.push_back({.kinds = kinds, .rdma = most.rdma});
    if (most.rdma) forms.push_back({.kinds = kinds, .rdma = false});
  }
  return forms;
}

struct Outcome {
  const char* call = nullptr;  // that failed
  CUresult result = CUDA_SUCCESS;
};

// A range of addresses, for a scope.
class Range {
 public:
  explicit Range(std::size_t bytes) : bytes_(bytes), result_(driver().address_reserve(&address_, bytes, 0, 0, 0)) {}
  ~Range() {
    if (result_ == CUDA_SUCCESS) driver().address_free(address_, bytes_);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  CUresult result() const { return result_; }
  CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::size_t bytes_;
  CUdeviceptr address_ = 0;
  const CUresult result_;
};

Outcome try_mapping(const Range& range, int ordinal, CUmemGenericAllocationHandle handle) {
  const CUresult mapped = driver().map(range.address(), range.bytes(), 0, handle, 0);
  if (mapped != CUDA_SUCCESS) return {"cuMemMap", mapped};
  const CUmemAccessDesc access = access_of(ordinal);
  const CUresult opened = driver().set_access(range.address(), range.bytes(), &access, 1);
  driver().unmap(range.address(), range.bytes());
  return {"cuMemSetAccess", opened};
}

Outcome try_form(const Range& range, int ordinal, HandleForm form) {
  const CUmemAllocationProp properties = allocation_properties(ordinal, form);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = driver().create(&handle, range.bytes(), &properties, 0);
  if (created != CUDA_SUCCESS) return {"cuMemCreate", created};
  const Outcome outcome = try_mapping(range, ordinal, handle);
  driver().release(handle);
  return outcome;
}

}  // namespace

std::optional<HandleForm> CudaHandleForm::working(std::size_t page_bytes) {
  if (is_known_.load(std::memory_order_acquire)) return get();
  const Lock lock(trying_);
  if (is_known_.load(std::memory_order_relaxed)) return get();
  const std::optional<HandleForm> found = try_all(page_bytes);
  if (!found) return std::nullopt;
  form_ = *found;
  is_known_.store(true, std::memory_order_release);
  return found;
}

// A lack of memory says nothing about a form, and every other error that the form does not work. An error of the program's
// earlier work fails all of them.
std::optional<HandleForm> CudaHandleForm::try_all(std::size_t page_bytes) const {
  const RelaxedCapture relaxed;
  const Range range(page_bytes);
  if (range.result() == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  check("cuMemAddressReserve", range.result());
  Outcome outcome;
  for (const HandleForm form : forms_up_to(get())) {
    outcome = try_form(range, ordinal_, form);
    if (outcome.result == CUDA_SUCCESS) return form;
    if (outcome.result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  }
  check(outcome.call, outcome.result);
  return std::nullopt;
}

CACHALOT_END
