#include <curand.h>

#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_reduce.cuh>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cachalot/buffers.h"
#include "cachalot/cub_scratch.h"
#include "examples/common/cuda.h"
#include "examples/lsm_pricing/cuda_backend.h"

namespace lsm {

namespace {

constexpr unsigned int kThreads = 256;

template <typename Work>
__global__ void for_each(std::size_t count, Work work) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) work(i);
}

struct WalkBack {
  double* motion;
  const double* normals;
  Bridge bridge;
  __device__ void operator()(std::size_t i) const { motion[i] = walked_back(motion[i], normals[i], bridge); }
};

struct FindSpots {
  double* spots;
  const double* motion;
  std::size_t pairs;
  Growth growth;
  __device__ void operator()(std::size_t i) const {
    spots[i] = spot_of(motion[i], growth);
    spots[i + pairs] = spot_of(-motion[i], growth);
  }
};

struct Mature {
  double* values;
  const double* spots;
  Date date;
  __device__ void operator()(std::size_t i) const { values[i] = value_at_end(spots[i], date); }
};

struct Decide {
  double* values;
  const double* spots;
  Date date;
  __device__ void operator()(std::size_t i) const { values[i] = value_on(values[i], spots[i], date); }
};

struct MomentsOf {
  const double* spots;
  const double* values;
  Date date;
  __host__ __device__ Moments operator()(std::size_t i) const {
    return moments_of(date.contract, spots[i], date.discount * values[i]);
  }
};

struct PairSums {
  const double* values;
  std::size_t pairs;
  __host__ __device__ Sums operator()(std::size_t i) const { return sums_of(values[i], values[i + pairs]); }
};

__host__ __device__ Sums operator+(const Sums& left, const Sums& right) {
  return {left.value + right.value, left.square + right.square};
}

struct Plus {
  template <typename Sum>
  __host__ __device__ Sum operator()(const Sum& left, const Sum& right) const {
    return left + right;
  }
};

void check(curandStatus_t status, const char* call) {
  if (status != CURAND_STATUS_SUCCESS)
    throw std::runtime_error(std::string(call) + ": cuRAND's status " + std::to_string(static_cast<int>(status)));
}
#define LSM_CURAND(call) check(call, #call)

struct DestroyGenerator {
  void operator()(curandGenerator_t generator) const { curandDestroyGenerator(generator); }
};
using Generator = std::unique_ptr<std::remove_pointer_t<curandGenerator_t>, DestroyGenerator>;

Generator make_generator(cudaStream_t stream) {
  curandGenerator_t made = nullptr;
  LSM_CURAND(curandCreateGenerator(&made, CURAND_RNG_PSEUDO_PHILOX4_32_10));
  Generator generator(made);
  LSM_CURAND(curandSetStream(made, stream));
  return generator;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(cachalot::CachingAllocator& allocator)
      : scratch_(allocator, stream_.get()),
        sum_(cachalot::allocate_owned(allocator, sizeof(Moments), 0, stream_.get())),
        generator_(make_generator(stream_.get())) {}

  cachalot::Stream stream() const override { return stream_.get(); }
  const char* name() const override { return "the GPU"; }

  void seed(std::uint64_t seed) override {
    LSM_CURAND(curandSetPseudoRandomGeneratorSeed(generator_.get(), seed));
    LSM_CURAND(curandSetGeneratorOffset(generator_.get(), 0));
  }
  void draw(Doubles normals) override {
    LSM_CURAND(curandGenerateNormalDouble(generator_.get(), normals.data, normals.count, 0, 1));
  }
  void walk_back(Doubles motion, Doubles normals, const Bridge& bridge) override {
    launch(motion.count, WalkBack{motion.data, normals.data, bridge});
  }
  void find_spots(Doubles spots, Doubles motion, const Growth& growth) override {
    launch(motion.count, FindSpots{spots.data, motion.data, motion.count, growth});
  }
  void mature(Doubles values, Doubles spots, const Date& date) override {
    launch(values.count, Mature{values.data, spots.data, date});
  }
  Moments moments(Doubles spots, Doubles values, const Date& date) override {
    return sum(values.count, MomentsOf{spots.data, values.data, date}, Moments{});
  }
  void decide(Doubles values, Doubles spots, const Date& date) override {
    launch(values.count, Decide{values.data, spots.data, date});
  }
  Sums sum_pairs(Doubles values) override {
    return sum(values.count / 2, PairSums{values.data, values.count / 2}, Sums{});
  }

 private:
  template <typename Work>
  void launch(std::size_t count, const Work& work) {
    const auto blocks = static_cast<unsigned int>((count + kThreads - 1) / kThreads);
    for_each<<<blocks, kThreads, 0, stream_.get()>>>(count, work);
    EXAMPLES_CHECK(cudaGetLastError());
  }

  // Returns the sum of `part` of 0, 1, … count - 1.
  template <typename Part, typename Sum>
  Sum sum(std::size_t count, const Part& part, const Sum& zero) {
    auto* const on_gpu = static_cast<Sum*>(sum_.get());
    EXAMPLES_CHECK(cudaMemsetAsync(on_gpu, 0, sizeof(Sum), stream_.get()));  // the result where kernels compute nothing
    const thrust::counting_iterator<std::size_t> numbers(0);
    scratch_([&](void* temp, std::size_t& bytes) {
      return cub::DeviceReduce::TransformReduce(temp, bytes, numbers, on_gpu, count, Plus{}, part, zero, stream_.get());
    });
    Sum result;
    EXAMPLES_CHECK(cudaMemcpyAsync(&result, on_gpu, sizeof(Sum), cudaMemcpyDeviceToHost, stream_.get()));
    stream_.synchronize();
    return result;
  }

  const examples::Stream stream_;
  cachalot::CubScratch scratch_;
  const cachalot::Allocation sum_;
  const Generator generator_;
};

}  // namespace

std::unique_ptr<Backend> cuda_backend(cachalot::CachingAllocator& allocator) {
  return std::make_unique<CudaBackend>(allocator);
}

}  // namespace lsm
