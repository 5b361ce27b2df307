#include "cachalot/dlpack.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "dlpack_abi.h"

CACHALOT_BEGIN

namespace {

constexpr DLPackVersion kVersion = {1, 1};
constexpr std::size_t kBitsPerByte = 8;

DLDataTypeCode code_of(DType dtype) {
  switch (dtype) {
    case DType::bool_:
      return kDLBool;
    case DType::uint8:
    case DType::uint16:
    case DType::uint32:
    case DType::uint64:
      return kDLUInt;
    case DType::int8:
    case DType::int16:
    case DType::int32:
    case DType::int64:
      return kDLInt;
    case DType::float8_e4m3fn:
      return kDLFloat8_e4m3fn;
    case DType::float8_e4m3fnuz:
      return kDLFloat8_e4m3fnuz;
    case DType::float8_e5m2:
      return kDLFloat8_e5m2;
    case DType::float8_e5m2fnuz:
      return kDLFloat8_e5m2fnuz;
    case DType::float8_e8m0fnu:
      return kDLFloat8_e8m0fnu;
    case DType::float16:
    case DType::float32:
    case DType::float64:
      return kDLFloat;
    case DType::bfloat16:
      return kDLBfloat;
    case DType::complex32:
    case DType::complex64:
    case DType::complex128:
      return kDLComplex;
  }
  throw InvalidArgument(formatted("{} is not the number of a DType", static_cast<int>(dtype)));
}

DLDataType type_of(DType dtype) {
  return {static_cast<std::uint8_t>(code_of(dtype)), static_cast<std::uint8_t>(bytes_of(dtype) * kBitsPerByte), 1};
}

DType dtype_of(const DLDataType& type) {
  CACHALOT_REQUIRE(type.lanes == 1, "the tensor's type has {} lanes: only types of 1 are taken", type.lanes);
  for (const std::string_view name : dtype_names()) {
    const DType dtype = dtype_named(name);
    if (code_of(dtype) == type.code && bytes_of(dtype) * kBitsPerByte == type.bits) return dtype;
  }
  throw InvalidArgument(
      formatted("the tensor's type has DLPack's code {} and {} bits: there is no such DType", type.code, type.bits));
}

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// --- to_dlpack -------------------------------------------------------------------------------------------------------

// An Export belongs to a consumer, with all that it points to.
template <typename Managed>
struct Export {
  explicit Export(std::shared_ptr<PooledTensor> exported)
      : tensor(std::move(exported)), shape(tensor->shape()), strides(row_major(shape)) {
    managed.dl_tensor = {.data = tensor->data(),
                         .device = {kDLCUDA, tensor->spec().device},
                         .ndim = static_cast<std::int32_t>(shape.size()),
                         .dtype = type_of(tensor->dtype()),
                         .shape = shape.data(),
                         .strides = strides.data(),
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { delete static_cast<Export*>(self->manager_ctx); };
  }

  std::shared_ptr<PooledTensor> tensor;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  Managed managed = {};
};

template <typename Managed>
Managed* make_export(std::shared_ptr<PooledTensor> tensor) {
  CACHALOT_REQUIRE(tensor != nullptr, "the tensor to export is {}", "null");
  Managed& managed = (new Export<Managed>(std::move(tensor)))->managed;
  if constexpr (requires { managed.version; }) managed.version = kVersion;
  return &managed;
}

// Moves the tensor into an export. If that fails, the tensor is as before.
template <typename Managed>
Managed* make_export(PooledTensor& tensor) {
  const auto shared = std::make_shared<PooledTensor>(std::move(tensor));
  try {
    return make_export<Managed>(shared);
  } catch (...) {
    tensor = std::move(*shared);
    throw;
  }
}

// --- from_dlpack -----------------------------------------------------------------------------------------------------

// DLPack's names, for those one may meet on an NVIDIA machine.
std::string name_of(std::int32_t device_type) {
  switch (device_type) {
    case kDLCPU:
      return "kDLCPU";
    case kDLCUDAHost:
      return "kDLCUDAHost";
    case kDLCUDAManaged:
      return "kDLCUDAManaged";
    default:
      return formatted("DLPack's number {}", device_type);
  }
}

void require_usable(const DLTensor& tensor) {
  CACHALOT_REQUIRE(tensor.device.device_type == kDLCUDA,
                   "the tensor's device is {}: only memory of a CUDA device (kDLCUDA) is taken",
                   name_of(tensor.device.device_type));
  CACHALOT_REQUIRE(tensor.device.device_id >= 0, "the tensor's device is {}: it is at least 0",
                   tensor.device.device_id);
  CACHALOT_REQUIRE(tensor.ndim >= 0, "the tensor has {} dimensions: it has at least 0", tensor.ndim);
  CACHALOT_REQUIRE(tensor.ndim == 0 || tensor.shape != nullptr, "the tensor has {} dimensions and a null shape",
                   tensor.ndim);
  CACHALOT_REQUIRE(tensor.data != nullptr, "the tensor's data is {}", "null");
}

TensorSpec spec_of(const DLTensor& tensor) {
  require_usable(tensor);
  TensorSpec spec{{}, dtype_of(tensor.dtype), tensor.device.device_id};
  if (tensor.ndim > 0) spec.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  static_cast<void>(spec.bytes());  // throws for an invalid shape
  return spec;
}

std::vector<std::int64_t> strides_of(const DLTensor& tensor, const TensorSpec& spec) {
  if (tensor.ndim == 0 || tensor.strides == nullptr) return row_major(spec.shape);
  return {tensor.strides, tensor.strides + tensor.ndim};
}

template <typename Managed>
Managed& not_null(Managed* managed) {
  CACHALOT_REQUIRE(managed != nullptr, "the DLPack tensor is {}: there must be one", "null");
  return *managed;
}

template <typename Managed>
void drop(void* managed) {
  auto* const tensor = static_cast<Managed*>(managed);
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

}  // namespace

DLManagedTensorVersioned* to_dlpack(PooledTensor&& tensor) { return make_export<DLManagedTensorVersioned>(tensor); }

DLManagedTensor* to_dlpack_unversioned(PooledTensor&& tensor) { return make_export<DLManagedTensor>(tensor); }

DLManagedTensorVersioned* to_dlpack(std::shared_ptr<PooledTensor> tensor) {
  return make_export<DLManagedTensorVersioned>(std::move(tensor));
}

DLManagedTensor* to_dlpack_unversioned(std::shared_ptr<PooledTensor> tensor) {
  return make_export<DLManagedTensor>(std::move(tensor));
}

// Returns whether the tensor is contiguous. The stride of a single element does not matter.
bool ForeignTensor::is_contiguous() const {
  const std::vector<std::int64_t> dense = row_major(spec_.shape);
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (spec_.shape[i] != 1 && strides_[i] != dense[i]) return false;
  }
  return true;
}

void ForeignTensor::release() {
  CACHALOT_REQUIRE(managed_ != nullptr,
                   "{} of a foreign tensor that is empty: it was handed back already, or moved from", "release");
  managed_.reset();
}

template <typename Managed>
ForeignTensor ForeignTensor::take(Managed& managed, bool is_read_only) {
  const DLTensor& tensor = managed.dl_tensor;
  ForeignTensor foreign;
  foreign.spec_ = spec_of(tensor);
  foreign.strides_ = strides_of(tensor, foreign.spec_);
  foreign.data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
  foreign.is_read_only_ = is_read_only;
  foreign.managed_ = {&managed, &drop<Managed>};  // last: what fails before leaves it to the caller
  return foreign;
}

ForeignTensor from_dlpack(DLManagedTensor* managed) {
  return ForeignTensor::take(not_null(managed), /*is_read_only=*/false);
}

ForeignTensor from_dlpack(DLManagedTensorVersioned* managed) {
  const DLPackVersion version = not_null(managed).version;
  CACHALOT_REQUIRE(version.major == kVersion.major, "the tensor is of DLPack {}.{}: only versions {}.x are understood",
                   version.major, version.minor, kVersion.major);
  return ForeignTensor::take(*managed, (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0);
}

CACHALOT_END
