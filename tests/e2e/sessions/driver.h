// The driver as seen by a program that does not link against it: opened by name, functions looked up.
//
// Ownership: the library stays open until close(). Threads: any may call the functions. Errors: a missing function ends
// the program.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#define SESSION_FUNCTIONS(each)                                                                                        \
    each(cuInit) each(cuDeviceGet) each(cuDevicePrimaryCtxRetain) each(cuCtxSetCurrent) each(cuMemAlloc) each(         \
        cuMemFree) each(cuMemcpyHtoD) each(cuMemcpyDtoH) each(cuMemcpyHtoDAsync) each(cuMemcpyDtoHAsync)               \
        each(cuMemsetD8Async) each(cuMemsetD32Async) each(cuStreamCreate) each(cuStreamDestroy) each(                  \
            cuStreamSynchronize) each(cuStreamQuery) each(cuCtxSynchronize) each(cuEventCreate) each(cuEventDestroy)   \
            each(cuEventRecord) each(cuEventSynchronize) each(cuLaunchHostFunc) each(cuModuleLoadData) each(           \
                cuModuleGetFunction) each(cuLaunchKernel) each(cuMemGetInfo) each(cuDeviceGetCount)                    \
                each(cuMemHostAlloc) each(cuMemFreeHost) each(cuMemcpy) each(cuEventQuery) each(                       \
                    cuMemHostRegister) each(cuMemHostUnregister) each(cuMemAllocAsync) each(cuMemFreeAsync)            \
                    each(cuMemPoolSetAttribute) each(cuDeviceGetDefaultMemPool) each(cuMemAddressReserve) each(        \
                        cuMemCreate) each(cuMemMap) each(cuMemSetAccess) each(cuMemUnmap) each(cuMemRelease)           \
                        each(cuMemRetainAllocationHandle) each(cuArrayCreate) each(cuArray3DCreate) each(              \
                            cuArrayDestroy) each(cuStreamWaitEvent) each(cuMemcpyDtoDAsync) each(cuStreamBeginCapture) \
                            each(cuLinkCreate) each(cuLinkAddData) each(cuLinkComplete) each(cuLinkDestroy) each(      \
                                cuModuleGetGlobal) each(cuModuleUnload) each(cuDevicePrimaryCtxReset)                  \
                                each(cuGraphCreate) each(cuGraphDestroy) each(cuGraphAddKernelNode) each(              \
                                    cuGraphAddMemsetNode) each(cuGraphAddMemcpyNode) each(cuGraphAddEmptyNode)         \
                                    each(cuGraphAddEventRecordNode) each(cuGraphInstantiateWithFlags) each(            \
                                        cuGraphLaunch) each(cuGraphExecDestroy) each(cuGraphExecKernelNodeSetParams)   \
                                        each(cuGraphKernelNodeSetParams) each(cuGraphNodeSetEnabled) each(             \
                                            cuMemPoolCreate) each(cuMemPoolDestroy) each(cuMemPoolTrimTo)              \
                                            each(cuMemAllocFromPoolAsync) each(cuMemPoolGetAttribute) each(            \
                                                cuGraphDestroyNode) each(cuGraphExecEventRecordNodeSetEvent)           \
                                                each(cuStreamWaitValue32) each(cuStreamWriteValue32) each(cuCtxCreate) \
                                                    each(cuStreamEndCapture) each(cuStreamBeginCaptureToGraph)         \
                                                        each(cuCtxDestroy) each(cuGraphAddMemAllocNode)                \
                                                            each(cuGraphAddMemFreeNode) each(cuLibraryLoadData)        \
                                                                each(cuLibraryGetKernel) each(cuKernelGetFunction)     \
                                                                    each(cuKernelGetParamInfo) each(cuKernelGetName)   \
                                                                        each(cuLibraryUnload) each(cuDeviceTotalMem)   \
                                                                            each(cuCtxSetLimit)

namespace gpupool::session_program {

// The library's functions; load() fills in all of them.
struct Driver {
#define SESSION_MEMBER(name) decltype(&::name) name = nullptr;
    SESSION_FUNCTIONS(SESSION_MEMBER)
#undef SESSION_MEMBER
    void* library = nullptr;

    void load();
    void close();
};

extern Driver driver;

// Calls cuInit, retains device 0's primary context and makes it current to the calling thread.
CUcontext begin();
// Makes `context` current to the calling thread.
void use(CUcontext context);

// Ends the program with a line that names the call, unless `result` is success.
void must(CUresult result, const char* what);
void expect(bool right, const char* what);
// As cuMemGetInfo shows it.
std::size_t free_bytes();

// Blocks the stream in a host function until release().
void block_until_release(CUstream stream);
void release();

// Calls release() as soon as the thread that made this object blocks, at the latest at end().
class ReleaseWhenBlocked {
  public:
    ReleaseWhenBlocked();
    // Whether the thread was blocked, and not only at the end.
    bool end();

  private:
    std::atomic<bool> over_{false};
    bool blocked_ = false;
    std::thread thread_;  // last: it uses all of the above
};

// Returns when stdin ends.
void await_end_of_input();

// Prints one line, "WORD NUMBER", and flushes stdout.
void say(const std::string& word, long long number = 0);

// In milliseconds, by the clock that all processes of the machine share.
std::int64_t now_ms();

CUfunction kernel(const char* name);
std::string kernels_ptx();  // the PTX of these kernels
// Launches add_value, which adds `value` to each of the words.
void add(CUfunction add_value, CUdeviceptr data, unsigned words, unsigned value, CUstream stream);

// The modes, grouped by subject.
int run_flood(const std::string& mode);
int run_calls(const std::string& mode);
int run_graph_modes(const std::string& mode);
int run_waiting(const std::string& mode);
int run_lanes(const std::string& mode, int rounds);
int run_pinned(const std::string& mode);
int run_memory(const std::string& mode);
int run_quotas(const std::string& mode);
int run_limits(const std::string& mode);
int run_stress(const std::string& mode);
int run_versions(const std::string& mode);
int run_ending(const std::string& mode, char** argv);

}  // namespace gpupool::session_program
