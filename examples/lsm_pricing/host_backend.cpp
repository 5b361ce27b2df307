#include "examples/lsm_pricing/host_backend.h"

#include <random>
#include <utility>
#include <vector>

namespace lsm {

namespace {

class HostBackend final : public Backend {
 public:
  explicit HostBackend(std::shared_ptr<cachalot::Device> device) : device_(std::move(device)) {}

  cachalot::Stream stream() const override { return nullptr; }
  const char* name() const override { return "the host's twin"; }

  void seed(std::uint64_t seed) override {
    engine_.seed(seed);
    normal_.reset();
  }

  void draw(Doubles normals) override {
    Copy drawn = nothing(normals);
    for (double& number : drawn) number = normal_(engine_);
    write(normals, drawn);
  }

  void walk_back(Doubles motion, Doubles normals, const Bridge& bridge) override {
    Copy walked = read(motion);
    const Copy numbers = read(normals);
    for (std::size_t i = 0; i < walked.size(); ++i) walked[i] = walked_back(walked[i], numbers[i], bridge);
    write(motion, walked);
  }

  void find_spots(Doubles spots, Doubles motion, const Growth& growth) override {
    const Copy walked = read(motion);
    Copy found = nothing(spots);
    for (std::size_t i = 0; i < walked.size(); ++i) {
      found[i] = spot_of(walked[i], growth);
      found[i + walked.size()] = spot_of(-walked[i], growth);
    }
    write(spots, found);
  }

  void mature(Doubles values, Doubles spots, const Date& date) override {
    const Copy at = read(spots);
    Copy matured = nothing(values);
    for (std::size_t i = 0; i < at.size(); ++i) matured[i] = value_at_end(at[i], date);
    write(values, matured);
  }

  Moments moments(Doubles spots, Doubles values, const Date& date) override {
    const Copy at = read(spots);
    const Copy later = read(values);
    Moments sum{};
    for (std::size_t i = 0; i < at.size(); ++i) sum = sum + moments_of(date.contract, at[i], date.discount * later[i]);
    return sum;
  }

  void decide(Doubles values, Doubles spots, const Date& date) override {
    const Copy at = read(spots);
    Copy decided = read(values);
    for (std::size_t i = 0; i < at.size(); ++i) decided[i] = value_on(decided[i], at[i], date);
    write(values, decided);
  }

  Sums sum_pairs(Doubles values) override {
    const Copy all = read(values);
    const std::size_t pairs = all.size() / 2;
    Sums sums;
    for (std::size_t i = 0; i < pairs; ++i) {
      const Sums pair = sums_of(all[i], all[i + pairs]);
      sums = {sums.value + pair.value, sums.square + pair.square};
    }
    return sums;
  }

 private:
  using Copy = std::vector<double>;

  static Copy nothing(Doubles of) { return Copy(of.count); }
  Copy read(Doubles from) {
    Copy copy(from.count);
    device_->copy_to_host(copy.data(), address(from), copy.size() * sizeof(double));
    return copy;
  }
  void write(Doubles to, const Copy& copy) {
    device_->copy_from_host(address(to), copy.data(), copy.size() * sizeof(double));
  }
  static cachalot::Address address(Doubles doubles) { return reinterpret_cast<cachalot::Address>(doubles.data); }

  const std::shared_ptr<cachalot::Device> device_;
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

}  // namespace

std::unique_ptr<Backend> host_backend(std::shared_ptr<cachalot::Device> device) {
  return std::make_unique<HostBackend>(std::move(device));
}

}  // namespace lsm
