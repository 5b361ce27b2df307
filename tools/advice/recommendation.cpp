#include "tools/advice/recommendation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

constexpr double kNearlyEqual = 1.01;  // memory of policies among which time decides

bool is_nearly_best(const PolicyAdvice& one, const PolicyAdvice& best) {
  return one.ooms == best.ooms &&
         static_cast<double>(one.peak_reserved_bytes) <
             kNearlyEqual * static_cast<double>(std::max<std::size_t>(best.peak_reserved_bytes, 1));
}

const PolicyAdvice& choice_of(const Advice& advice) {
  const PolicyAdvice& best = advice.policies.front();
  if (is_nearly_best(advice.native(), best)) return advice.native();
  const PolicyAdvice* choice = &best;
  for (const PolicyAdvice& one : advice.policies) {
    if (is_nearly_best(one, best) && one.driver_us < choice->driver_us) choice = &one;
  }
  return *choice;
}

std::string percent_less(std::size_t bytes, std::size_t than) {
  const double part = 100 * (1 - static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(than, 1)));
  return fmt::format("{:.1f} % {}", part < 0 ? -part : part, part < 0 ? "more" : "less");
}

// Why PyTorch's default is kept.
std::string reason_to_keep(const Advice& advice) {
  const PolicyAdvice& native = advice.native();
  const std::string reserved = fmt::format("it reserves {} for {} requested", format_bytes(native.peak_reserved_bytes),
                                           format_bytes(advice.peak_requested_bytes));
  if (native.ooms == 0) return fmt::format("Keep PyTorch's default: {}, and no setting saves 1 %.", reserved);
  return fmt::format("No setting helps: with each of them {} or more fail on {} of memory.",
                     format_count(native.ooms, "allocation"), format_bytes(advice.on.usable_bytes));
}

std::string reason_to_set(const Advice& advice, const PolicyAdvice& choice) {
  const PolicyAdvice& native = advice.native();
  std::string text = fmt::format("Set {}: ", choice.policy);
  if (choice.ooms < native.ooms) {
    text += fmt::format(
        "on {} of memory {} with it, and {} with PyTorch's default", format_bytes(advice.on.usable_bytes),
        choice.ooms == 0 ? "no allocation fails" : format_count(choice.ooms, "allocation") + " fail", native.ooms);
  } else {
    text += fmt::format("it reserves {} instead of {}, {}", format_bytes(choice.peak_reserved_bytes),
                        format_bytes(native.peak_reserved_bytes),
                        percent_less(choice.peak_reserved_bytes, native.peak_reserved_bytes));
  }
  if (!choice.smallest_gpu.empty() && choice.smallest_gpu_bytes < native.smallest_gpu_bytes) {
    text += fmt::format(", and {} ({}) is enough instead of {} ({})", choice.smallest_gpu,
                        format_bytes(choice.smallest_gpu_bytes), native.smallest_gpu,
                        format_bytes(native.smallest_gpu_bytes));
  }
  return text + ".";
}

}  // namespace

Recommendation recommendation_of(const Advice& advice) {
  const PolicyAdvice& native = advice.native();
  const PolicyAdvice& choice = choice_of(advice);
  const bool keeps = &choice == &native;
  return {.policy = choice.policy,
          .line = choice.line,
          .saved_bytes = native.peak_reserved_bytes - std::min(native.peak_reserved_bytes, choice.peak_reserved_bytes),
          .sentence = keeps ? reason_to_keep(advice) : reason_to_set(advice, choice)};
}

}  // namespace cachalot::tools
