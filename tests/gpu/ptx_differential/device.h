// A driver library, loaded by path: NVIDIA's or the software GPU.
//
// Ownership: the library stays loaded; a Module unloads itself. Threads: the one that created it. Errors: those that a
// test can continue after are returned as text; others end the program with a line that names the failed call.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "tests/gpu/ptx_differential/values.h"

namespace gpupool::differential {

class Device {
  public:
    explicit Device(const std::string& library);
    std::string name() const;

    // Runs entry `entry` of a module on `blocks` blocks of 128 threads: `in` is its first parameter, and `out_words`
    // words of its second are returned. `count` is its third parameter, unless 0. Empty on a failed launch; then
    // `error` gives the reason.
    CUmodule load(const std::string& ptx, std::string& error, bool optimize = true);
    void unload(CUmodule module);
    std::vector<std::uint64_t> run(CUmodule module, const std::string& entry, const std::vector<std::uint64_t>& in,
                                   std::size_t out_words, unsigned threads, bool with_count, std::string& error);

  private:
    template <class F>
    F find(const char* symbol) const;
    void check(CUresult result, const char* what) const;
    std::string name_of(CUresult result) const;
    CUdeviceptr buffer(CUdeviceptr& address, std::size_t& has, std::size_t bytes);
    void use() const;

    std::string path_;
    void* library_ = nullptr;
    CUcontext context_ = nullptr;
    CUdeviceptr in_ = 0, out_ = 0;
    std::size_t in_bytes_ = 0, out_bytes_ = 0;
};

}  // namespace gpupool::differential
