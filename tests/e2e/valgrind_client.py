"""A client for test_valgrind.sh: plans, trains, saves, loads, runs a job, on the socket of a daemon
that somebody else started. Arguments: socket, folder for what is written."""
import os
import shutil
import sys

import grpc
import harness
from memferry.v1 import hardware_pb2, hardware_pb2_grpc, plan_pb2, plan_pb2_grpc
from memferry.v1 import training_pb2, training_pb2_grpc


class Connection:
    def __init__(self, path):
        self.channel = grpc.insecure_channel("unix:" + path)
        self.hardware = hardware_pb2_grpc.HardwareServiceStub(self.channel)
        self.plans = plan_pb2_grpc.PlanServiceStub(self.channel)
        self.training = training_pb2_grpc.TrainingServiceStub(self.channel)


def train(connection, folder):
    # Strategies that do not search: under valgrind that takes a minute.
    session = harness.Session(connection, budget=1 << 20, strategy=plan_pb2.STRATEGY_STREAM)
    for step in range(3):
        session.step(harness.text_tokens(session.tokens_per_batch, step))
    path = os.path.join(folder, "saved")
    session.save(path)
    session.send("LoadState", path=path).result()
    session.forward(harness.text_tokens(session.tokens_per_batch))
    session.send("Sample", prompt=[65, 66], max_tokens=3).result()
    try:
        session.forward_backward([999] * session.tokens_per_batch).result()
        sys.exit("a wrong token was taken")
    except grpc.RpcError:
        pass
    session.close()


def run_job(connection, folder):
    config = harness.write_run(folder, steps=4, save_steps=2, strategy="zero_offload")
    with open(config, encoding="utf-8") as file:
        text = file.read()
    events = list(connection.training.Run(training_pb2.RunRequest(
        config_json=text, base_folder=folder)))
    if events[-1].finished.state != "finished":
        sys.exit(f"the job ended with {events[-1]}")


def main():
    connection = Connection(sys.argv[1])
    try:
        grpc.channel_ready_future(connection.channel).result(timeout=60)
        connection.hardware.Doctor(hardware_pb2.DoctorRequest())
        connection.plans.ListModels(plan_pb2.ListModelsRequest())
        train(connection, sys.argv[2])
        run_job(connection, sys.argv[2])
    finally:
        shutil.rmtree(harness.FOLDER, ignore_errors=True)


main()
