// The entry points that this library exports, by name.
//
// Threads: any. Errors: none; null if there is no such entry point.
#pragma once

namespace gpupool::softgpu {

// Searches this library only, since another driver may be loaded into the process as well.
void* find_entry_point(const char* symbol);

// While one exists, the null stream means the calling thread's default stream, as in the _ptds and _ptsz entry points.
class PerThreadDefault {
  public:
    PerThreadDefault() : before_(on()) { on() = true; }
    ~PerThreadDefault() { on() = before_; }
    PerThreadDefault(const PerThreadDefault&) = delete;
    PerThreadDefault& operator=(const PerThreadDefault&) = delete;

    static bool& on();

  private:
    const bool before_;
};

}  // namespace gpupool::softgpu
