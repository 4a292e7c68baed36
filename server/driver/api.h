// A driver library as a table of function pointers: NVIDIA's, the software GPU, or any other with the driver's ABI.
//
// There is one pointer per call of the call table, of the type that cuda.h declares. It is null if the library does not
// export the symbol (an older driver, the software GPU); `call()` then returns CUDA_ERROR_NOT_SUPPORTED.
//
// A function that gives a stream work (kinds work and order, protocol/calls/rules.h) can be called only with a
// WorkPermit. In the worker the gate gives it as a Submission (server/worker/gate/submission.h), so work that bypasses
// the gate does not compile.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocol/calls/call.h"

namespace gpupool::worker {
class Scheduler;
class Tracer;
struct MarkWord;
}  // namespace gpupool::worker

namespace gpupool::driver {

// The right to give a stream work.
class WorkPermit {
  public:
    WorkPermit(WorkPermit&&) noexcept = default;
    WorkPermit& operator=(WorkPermit&&) noexcept = default;
    WorkPermit(const WorkPermit&) = delete;
    WorkPermit& operator=(const WorkPermit&) = delete;

  protected:
    WorkPermit() = default;
    ~WorkPermit() = default;
};

// For what belongs to no command and takes the GPU no time: marks, and events that the worker records for itself. The
// gate depends on them.
class OwnWork final : public WorkPermit {
    friend class worker::Scheduler;
    friend class worker::Tracer;
    friend struct worker::MarkWord;
    OwnWork() = default;
};

// A driver function that gives a stream work.
template <class Function>
class Work {
  public:
    constexpr Work() = default;
    template <class Given>
        requires std::is_convertible_v<Given, Function>
    constexpr Work(Given function) : function_(function) {}
    constexpr bool operator==(std::nullptr_t) const { return function_ == nullptr; }

    // The function itself; needs a permit.
    [[nodiscard]] Function get(const WorkPermit&) const { return function_; }

  private:
    Function function_ = nullptr;
};

template <class Call>
inline constexpr bool gives_work =
    calls::in_stream_order<Call> && !calls::has_rule(Call::kRules, calls::Rule::destroys);

template <class Call>
using Pointer = std::conditional_t<gives_work<Call>, Work<typename Call::Function>, typename Call::Function>;

struct Api {
#define GP_CALL(op, symbol, ...) Pointer<calls::symbol> symbol{};
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
};

// If set, call() adds the time that this thread's driver calls take. Null while tracing is off.
inline constinit thread_local std::uint64_t* taken_ns = nullptr;

template <class... Parameters, class... Given>
CUresult call(CUresult (*function)(Parameters...), Given... arguments) {
    if (function == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (taken_ns == nullptr) [[likely]] {
        return function(arguments...);
    }
    const auto start = std::chrono::steady_clock::now();
    const CUresult result = function(arguments...);
    *taken_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
    return result;
}

// The same for a function that gives a stream work.
template <class Function, class... Given>
CUresult call(const WorkPermit& permit, const Work<Function>& function, Given... arguments) {
    return call(function.get(permit), arguments...);
}

// Maps a call to its member of Api.
template <class Call>
struct Member;
#define GP_CALL(op, symbol, ...)                                        \
    template <>                                                         \
    struct Member<calls::symbol> {                                      \
        static auto get(const Api& api) noexcept { return api.symbol; } \
    };
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

}  // namespace gpupool::driver
