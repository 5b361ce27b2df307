/** @file
 * The version of cachalot: of these headers, and of the library that a program runs with.
 * C and C++ programs may include this header; cachalot/c_api.h does.
 *
 * Versions follow semantic versioning. As long as the major number is 0, each minor version may
 * change interfaces, and a patch only corrects mistakes. */
#ifndef CACHALOT_VERSION_H_
#define CACHALOT_VERSION_H_

#define CACHALOT_VERSION_MAJOR 0 /**< The first number of the version. */
#define CACHALOT_VERSION_MINOR 1 /**< The second number of the version, 0 to 99. */
#define CACHALOT_VERSION_PATCH 0 /**< The third number of the version, 0 to 99. */

/** The headers' version as one integer that grows with each version, for the preprocessor:
 * 10000 x major + 100 x minor + patch. 0.1.0 is 100, 1.2.3 is 10203. */
#define CACHALOT_VERSION \
  (CACHALOT_VERSION_MAJOR * 10000 + CACHALOT_VERSION_MINOR * 100 + CACHALOT_VERSION_PATCH)

/** The headers' version as text: "0.1.0". */
#define CACHALOT_VERSION_STRING "0.1.0"

#ifdef __cplusplus
/** Names the namespace in which this version's names lie. `cachalot::Device`, as programs write it,
 * is `cachalot::abi_0_1::Device`. So a program does not link with a library of another version than
 * its headers', and two versions in one program stay apart. */
#define CACHALOT_ABI CACHALOT_ABI_OF(CACHALOT_VERSION_MAJOR, CACHALOT_VERSION_MINOR)
/** @cond */
#define CACHALOT_ABI_OF(major, minor) CACHALOT_ABI_OF_(major, minor)
#define CACHALOT_ABI_OF_(major, minor) abi_##major##_##minor

/* CACHALOT_BEGIN_API and CACHALOT_END_API enclose what programs may use, which the shared library
 * of C++ (BUILD_SHARED_LIBS) exports; CACHALOT_BEGIN and CACHALOT_END enclose the rest. */
#ifdef CACHALOT_SHARED
#define CACHALOT_BEGIN_API \
  namespace cachalot {     \
  inline namespace CACHALOT_ABI __attribute__((visibility("default"))) {
#else
#define CACHALOT_BEGIN_API \
  namespace cachalot {     \
  inline namespace CACHALOT_ABI {
#endif
#define CACHALOT_END_API \
  }                      \
  }
#define CACHALOT_BEGIN \
  namespace cachalot { \
  inline namespace CACHALOT_ABI {
#define CACHALOT_END CACHALOT_END_API
/** @endcond */
CACHALOT_BEGIN_API

/** Returns the version of the library, "0.1.0". It differs from CACHALOT_VERSION_STRING if the
 * program was compiled with the headers of another version. Part of cachalot::core; programs that
 * use libcachalot.so call cachalot_version().
 * Thread safety: any thread, at any time. */
const char* version();

CACHALOT_END_API
#endif

#endif /* CACHALOT_VERSION_H_ */
