// Finds the sanitizer that the tests are compiled with. GCC says it by macros, Clang by __has_feature.
#pragma once

#ifndef __has_feature
#define __has_feature(feature) 0
#endif

namespace cachalot {

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace cachalot
