/* The floor: NVML asked for what the agent asks, each second and every 15 seconds, and nothing done with the answers.
 *
 *   floor EVENTS       EVENTS 1: another thread waits for events, as the agent's does; 0: none
 *
 * Runs until it is killed. Written against the public ABI; the library is found as any program finds it.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*entry)(void *, ...);

enum { MOST_GPUS = 64, LINKS = 18, COUNTERS = 4, FIELDS = 8, SLOW_SECONDS = 15 };

static void *library;
static _Alignas(8) char buffer[1 << 20], second[1 << 12];

static entry find(const char *name) {
  entry found = (entry)dlsym(library, name);
  if (!found) { fprintf(stderr, "floor: no %s\n", name); exit(1); }
  return found;
}

static void *wait_for_events(void *set) {
  entry wait = find("nvmlEventSetWait_v2");
  static _Alignas(8) char event[64];
  for (;;) wait(set, event, 1000u);
  return 0;
}

/* Calls of the slow rate that fill one or two places. */
static const char *const SLOW[] = {
  "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetTotalEnergyConsumption",
  "nvmlDeviceGetPerformanceState", "nvmlDeviceGetNumFans", "nvmlDeviceGetMaxPcieLinkWidth",
  "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetCurrPcieLinkGeneration",
  "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization",
  "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization", "nvmlDeviceGetEccMode",
  "nvmlDeviceGetCurrentClocksEventReasons",
};

int main(int argc, char **argv) {
  library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!library) { fprintf(stderr, "floor: %s\n", dlerror()); return 1; }
  if (((int (*)(void))find("nvmlInit_v2"))()) return 1;
  unsigned count = 0;
  find("nvmlDeviceGetCount_v2")(&count);
  if (count > MOST_GPUS) count = MOST_GPUS;
  void *gpus[MOST_GPUS];
  int (*handle)(unsigned, void **) = (int (*)(unsigned, void **))find("nvmlDeviceGetHandleByIndex_v2");
  for (unsigned i = 0; i < count; i++) if (handle(i, &gpus[i])) return 1;

  if (argc > 1 && argv[1][0] == '1') {
    void *set = 0;
    pthread_t thread;
    find("nvmlEventSetCreate")(&set);
    for (unsigned i = 0; i < count; i++) find("nvmlDeviceRegisterEvents")(gpus[i], 8ULL, set);
    pthread_create(&thread, 0, wait_for_events, set);
  }

  entry memory = find("nvmlDeviceGetMemoryInfo_v2"), busy = find("nvmlDeviceGetUtilizationRates");
  entry processes = find("nvmlDeviceGetComputeRunningProcesses_v3"), samples = find("nvmlDeviceGetProcessUtilization");
  entry graphics = find("nvmlDeviceGetGraphicsRunningProcesses_v3"), mps = find("nvmlDeviceGetMPSComputeRunningProcesses_v3");
  entry errors = find("nvmlDeviceGetNvLinkErrorCounter"), state = find("nvmlDeviceGetNvLinkState");
  entry fields = find("nvmlDeviceGetFieldValues"), threshold = find("nvmlDeviceGetTemperatureThreshold");
  entry clock = find("nvmlDeviceGetClockInfo"), most = find("nvmlDeviceGetMaxClockInfo");
  entry slow[sizeof SLOW / sizeof *SLOW];
  for (unsigned k = 0; k < sizeof SLOW / sizeof *SLOW; k++) slow[k] = find(SLOW[k]);

  struct timespec due;
  clock_gettime(CLOCK_MONOTONIC, &due);
  for (unsigned tick = 0;; tick++) {
    for (unsigned i = 0; i < count; i++) {
      void *gpu = gpus[i];
      struct { unsigned version; unsigned long long total, reserved, free, used; } info = { sizeof info | 2u << 24 };
      unsigned listed = 4096, sampled = 4096;
      memory(gpu, &info);
      processes(gpu, &listed, buffer);
      busy(gpu, buffer);
      samples(gpu, buffer, &sampled, (unsigned long long)(time(0) - 1) * 1000000ULL);
      if (tick % SLOW_SECONDS) continue;
      listed = 4096; graphics(gpu, &listed, buffer);
      listed = 4096; mps(gpu, &listed, buffer);
      for (unsigned link = 0; link < LINKS; link++) {
        state(gpu, link, buffer);
        for (unsigned counter = 0; counter < COUNTERS; counter++) errors(gpu, link, counter, buffer);
      }
      for (unsigned call = 0; call < 6; call++) {
        memset(buffer, 0, 4096);
        fields(gpu, FIELDS, buffer);
      }
      for (unsigned kind = 0; kind < 4; kind++) {
        threshold(gpu, kind, buffer);
        clock(gpu, kind, buffer);
        most(gpu, kind, buffer);
      }
      for (unsigned k = 0; k < sizeof SLOW / sizeof *SLOW; k++) slow[k](gpu, buffer, second);
    }
    due.tv_sec++;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, 0)) {}
  }
}
