# A package of Spack, to be used where it lies:
#
#   spack repo add packaging/spack
#   spack dev-build --source-path . cachalot@0.1.0
#
# The source is this checkout; a package in Spack's own repository names an archive and its digest in version().
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Cachalot(CMakePackage):
    """A GPU memory allocator for CUDA and PyTorch, and tools that show, replay and simulate GPU memory without a GPU."""

    license("Apache-2.0")

    version("0.1.0")

    variant("cuda", default=True, description="Allocators for GPUs; without it, those of the simulated device")
    variant("tools", default=True, description="The command cachalot; with cuda also the simulated CUDA runtime")
    variant("shared", default=False, description="One shared library, libcachalot_cpp.so, in place of static ones")

    generator("ninja")
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("cuda@12:", type="build", when="+cuda")  # headers alone: the driver is found at run time
    with when("+tools"):
        depends_on("cli11")
        depends_on("fmt")
        depends_on("nlohmann-json@3.11:")
        depends_on("zlib-api")

    requires("platform=linux", msg="cachalot is for Linux")
    conflicts("%gcc@:11", msg="cachalot needs C++20 of GCC 12 or newer")
    conflicts("%clang@:13", msg="cachalot needs C++20 of Clang 14 or newer")

    def cmake_args(self):
        return [
            self.define_from_variant("CACHALOT_CUDA", "cuda"),
            self.define_from_variant("CACHALOT_BUILD_TOOLS", "tools"),
            self.define("CACHALOT_BUILD_SIMULATOR", self.spec.satisfies("+cuda+tools")),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define("CACHALOT_BUILD_TESTS", False),
            self.define("CACHALOT_BUILD_BENCHMARKS", False),
            self.define("CACHALOT_BUILD_EXAMPLES", False),
            self.define("CACHALOT_BUILD_FUZZERS", False),
            self.define("CACHALOT_BUILD_GPU_CHECKS", False),
            self.define("CACHALOT_BUILD_PYTORCH", False),
        ]

    def test_command(self):
        """the command tells its version, and explains a file"""
        if self.spec.satisfies("+tools"):
            cachalot = which(self.prefix.bin.cachalot, required=True)
            out = cachalot("--version", output=str.split, error=str.split)
            assert str(self.spec.version) in out
